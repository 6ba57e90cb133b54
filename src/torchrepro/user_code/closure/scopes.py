"""Which scope each name of a file belongs to."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def owners_of_names(tree: ast.Module, *, postponed: bool) -> dict[ast.Name, ast.AST | None]:
    """Return the function, class or comprehension whose local each name is; None for globals and builtins.

    Names that only annotations use are left out where the file postpones those.
    """
    resolver = _Resolver(postponed)
    resolver.visit_all(tree.body)
    return resolver.owners


def deferred_names(node: ast.AST) -> set[ast.Name]:
    """Return the names in a statement that are looked up only when a function in it is called."""
    return {
        name
        for function in ast.walk(node)
        if isinstance(function, FUNCTIONS)
        for part in _body(function)
        for name in ast.walk(part)
        if isinstance(name, ast.Name)
    }


def bound_names(statements: Iterable[ast.AST]) -> Iterator[str]:
    """Return the names that statements bind in their own scope, in order."""
    for node in (node for statement in statements for node in own_nodes(statement)):
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


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Return the nodes that belong to the same scope as this one, itself included."""
    yield node
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(node, _COMPREHENSIONS):
            # `:=` binds outside of a comprehension, everything else inside.
            yield from (inner.target for inner in ast.walk(child) if isinstance(inner, ast.NamedExpr))
        else:
            yield from own_nodes(child)


def _body(function: Function) -> Sequence[ast.AST]:
    return [function.body] if isinstance(function, ast.Lambda) else function.body


@dataclass(frozen=True)
class _Scope:
    node: ast.AST
    bound: set[str]
    declared_global: frozenset[str] = frozenset()


class _Resolver(ast.NodeVisitor):
    """Follows Python's scoping rules through a file."""

    def __init__(self, postponed: bool) -> None:
        self.owners: dict[ast.Name, ast.AST | None] = {}
        self._postponed = postponed
        self._scopes: list[_Scope] = []

    def visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.owners[node] = None
        for distance, scope in enumerate(reversed(self._scopes)):
            if isinstance(scope.node, ast.ClassDef) and distance:
                continue  # the body of a class is no scope to the functions in it
            if node.id in scope.bound:
                self.owners[node] = scope.node
            if node.id in scope.bound | scope.declared_global:
                return

    def _function(self, node: Function) -> None:
        parameters = [part for part in ast.iter_child_nodes(node.args) if isinstance(part, ast.arg)]
        self.visit_all([*node.args.defaults, *node.args.kw_defaults, *getattr(node, "decorator_list", ())])
        self._annotations([*(item.annotation for item in parameters), getattr(node, "returns", None)])
        self._inside(node, _body(node), {parameter.arg for parameter in parameters})

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _function

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.visit_all([*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)])
        self._inside(node, node.body, set())

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit_all([node.target, node.value])
        if not self._scopes or isinstance(self._scopes[-1].node, ast.ClassDef):  # functions never run it
            self._annotations([node.annotation])

    def _annotations(self, annotations: list[ast.expr | None]) -> None:
        self.visit_all(() if self._postponed else annotations)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        first, *others = node.generators
        self.visit(first.iter)
        self._scopes.append(_Scope(node, set(bound_names(part.target for part in node.generators))))
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self.visit_all([first.target, *first.ifs, *others, *parts])
        self._scopes.pop()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def _inside(self, node: ast.AST, body: Sequence[ast.AST], bound: set[str]) -> None:
        own = [child for part in body for child in own_nodes(part)]
        outer = {
            name for child in own if isinstance(child, ast.Global | ast.Nonlocal) for name in child.names
        }
        declared = frozenset(name for child in own if isinstance(child, ast.Global) for name in child.names)
        parameters = {parameter.name for parameter in getattr(node, "type_params", ())}
        self._scopes.append(_Scope(node, bound | parameters | set(bound_names(body)) - outer, declared))
        self.visit_all(body)
        self._scopes.pop()
