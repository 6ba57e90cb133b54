"""The function that makes locals anew: its parameters are the variables that they close over."""

from __future__ import annotations

import ast

from torchrepro.bundle.source_closure.locals import EMPTY, Local, contents
from torchrepro.bundle.source_closure.snippets import INDENT, Snippet


def definition_text(node: ast.AST, piece: Snippet, name: str, *, depth: int = 0) -> str:
    """A definition as a statement; a lambda is given a name."""
    if not isinstance(node, ast.Lambda):
        return piece.text(depth)
    text = piece.text(depth).strip()
    return f"{INDENT * depth}{name} = " + (f"({text})" if len(piece.lines) > 1 else text)


def factory_text(name: str, group: list[Local], pieces: list[Snippet], variables: list[str]) -> str:
    """`def make_f(state): def f(): ...; return f`, for all members of a group at once."""
    members = {id(local.value): index for index, local in enumerate(group)}
    unbound = [
        variable
        for variable in variables
        if all(contents(local.cells[variable]) is EMPTY for local in group if variable in local.cells)
    ]
    given = [variable for variable in variables if variable not in unbound]
    inside = {
        variable: members[id(contents(cell))]
        for local in group
        for variable, cell in local.cells.items()
        if id(contents(cell)) in members
    }
    bound = [local.name for local in group]
    clean = (
        len(set(bound)) == len(bound)
        and not set(bound) & set(variables)
        and all(bound[index] == variable for variable, index in inside.items())
    )
    lines = [f"def {name}({', '.join(given if clean else [f'given_{each}' for each in given])}):"]
    lines += [f"{INDENT}{variable} = None\n{INDENT}del {variable}" for variable in unbound]
    results = []
    for index, (local, piece) in enumerate(zip(group, pieces, strict=True)):
        result = local.name if clean else f"made_{index}"
        lines.append(definition_text(local.node, piece, result, depth=1))
        if not clean and not isinstance(local.node, ast.Lambda):
            lines.append(f"{INDENT}{result} = {local.name}")
        results.append(result)
        lines.append("")
    if not clean:
        lines += [f"{INDENT}{variable} = given_{variable}" for variable in given]
        lines += [f"{INDENT}{variable} = made_{index}" for variable, index in inside.items()]
    lines.append(f"{INDENT}return {', '.join(results)}")
    return "\n".join(lines)
