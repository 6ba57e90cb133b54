"""The scope that owns every name of a file: what a piece of it takes from outside follows from that."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Names:
    """Every name of a file that is read or written by an expression."""

    owners: dict[ast.Name, ast.AST | None]
    """The function, class or comprehension whose local it is; None for globals and builtins."""
    annotations: list[ast.expr]
    """Annotations that run when their statement does, unless the file postpones them."""


def resolve_names(tree: ast.Module) -> Names:
    """Follow Python's scoping rules through a whole file."""
    resolver = _Resolver(tree)
    for statement in tree.body:
        resolver.visit(statement)
    return Names(resolver.owners, resolver.annotations)


def deferred_names(node: ast.AST) -> set[ast.Name]:
    """Return the names in a statement that are looked up only when a function in it is called."""
    return {
        name
        for function in ast.walk(node)
        if isinstance(function, FUNCTIONS)
        for part in (function.body if isinstance(function.body, list) else [function.body])
        for name in ast.walk(part)
        if isinstance(name, ast.Name)
    }


def bound_names(statements: Iterable[ast.AST]) -> Iterator[str]:
    """Return the names that statements bind in their own scope, in order."""
    for statement in statements:
        yield from _bound(statement)


@dataclass
class _Scope:
    node: ast.AST
    bound: set[str] = field(default_factory=set)
    declared_global: set[str] = field(default_factory=set)


class _Resolver(ast.NodeVisitor):
    def __init__(self, tree: ast.Module) -> None:
        self.owners: dict[ast.Name, ast.AST | None] = {}
        self.annotations: list[ast.expr] = []
        self._stack = [_Scope(tree)]

    def visit_Name(self, node: ast.Name) -> None:
        self.owners[node] = self._owner(node.id)

    def _owner(self, name: str) -> ast.AST | None:
        for distance, scope in enumerate(reversed(self._stack[1:])):
            if isinstance(scope.node, ast.ClassDef) and distance:
                continue  # the body of a class is no scope to the functions in it
            if name in scope.declared_global:
                return None
            if name in scope.bound:
                return scope.node
        return None

    def _function(self, node: Function) -> None:
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]
        for default in [*arguments.defaults, *arguments.kw_defaults]:
            if default is not None:
                self.visit(default)
        if not isinstance(node, ast.Lambda):
            self._visit_all(node.decorator_list)
            for annotation in [*(argument.annotation for argument in every), node.returns]:
                self._annotation(annotation)
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        scope = self._scope(node, body)
        scope.bound |= {argument.arg for argument in every} | _type_parameters(node)
        self._inside(scope, body)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _function

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all([*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)])
        scope = self._scope(node, node.body)
        scope.bound |= _type_parameters(node)
        self._inside(scope, node.body)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        if node.value is not None:
            self.visit(node.value)
        if isinstance(self._stack[-1].node, ast.Module | ast.ClassDef):
            self._annotation(node.annotation)

    def _annotation(self, annotation: ast.expr | None) -> None:
        if annotation is not None:
            self.annotations.append(annotation)
            self.visit(annotation)

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, _COMPREHENSIONS):
            self._comprehension(node)
        else:
            super().generic_visit(node)

    def _comprehension(self, node: ast.AST) -> None:
        generators: list[ast.comprehension] = node.generators  # type: ignore[attr-defined]
        self.visit(generators[0].iter)
        scope = _Scope(node, set(bound_names(generator.target for generator in generators)))
        self._stack.append(scope)
        for child in ast.iter_child_nodes(node):
            if child is generators[0]:
                self._visit_all([child.target, *child.ifs])
            else:
                self.visit(child)
        self._stack.pop()

    def _scope(self, node: ast.AST, body: list[ast.stmt] | list[ast.expr]) -> _Scope:
        own = [child for part in body for child in _own_nodes(part)]
        elsewhere = {
            name for child in own if isinstance(child, ast.Global | ast.Nonlocal) for name in child.names
        }
        declared = {name for child in own if isinstance(child, ast.Global) for name in child.names}
        return _Scope(node, set(bound_names(body)) - elsewhere, declared)

    def _inside(self, scope: _Scope, body: Iterable[ast.AST]) -> None:
        self._stack.append(scope)
        self._visit_all(body)
        self._stack.pop()

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Return the nodes that belong to the same scope as this one, itself included."""
    yield node
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(node, _COMPREHENSIONS):
            # `:=` binds outside of a comprehension, everything else inside.
            yield from (inner.target for inner in ast.walk(child) if isinstance(inner, ast.NamedExpr))
        else:
            yield from _own_nodes(child)


def _bound(statement: ast.AST) -> Iterator[str]:
    for node in _own_nodes(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.MatchMapping(rest=str(name))
            ):
                yield name


def _type_parameters(node: ast.AST) -> set[str]:
    return {parameter.name for parameter in getattr(node, "type_params", ())}
