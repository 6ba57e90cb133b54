"""Where in the user's program a node comes from: `model.py:12 in forward of encoder.fc: y = self.fc(x)`.

`source_of` and `module_of` answer alike for graphs of a compiler and graphs that were read from a text. In
the text both stand in one comment: `comment_of` writes it, `annotations_of` and `origin_in` read it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.fx.node import Node

_FRAME = re.compile(
    r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>[^\n]+)\n\s*(?P<code>[^\n]*)'
)
_COMMENT = re.compile(
    r"(?P<file>.+?):(?P<line>\d+) in (?P<function>.+?)(?: of (?P<module>\S+))?:(?: (?P<code>.*))?\Z"
)
UNKNOWN = "source unknown"
_MODULE_ALONE = re.compile(rf"{UNKNOWN}, in (?P<module>\S+)\Z")

_ROOT = re.compile(r"(?P<scope>[LG])\[['\"](?P<name>[^'\"]*)['\"]\](?P<rest>.*)\Z", re.DOTALL)
_STEP = re.compile(r"\[['\"]?(?P<index>[^\]]*?)['\"]?\]|\.?(?P<name>[^.\[\]]+)")
_NOT_WRITTEN = frozenset({"_orig_mod", "_modules", "__dict__", "__self__", "__func__"})
"""Steps that the compiler takes and a user does not write."""
_OF_DYNAMO = frozenset({"self", "fn"})
"""The first parameter of a module's forward, and of Dynamo's wrapper around a module of torch.nn."""


def source_of(node: Node) -> str | None:
    """Return the last frame of the user in a node's stack trace, None where there is no trace."""
    frame = _frame_of(node)
    return None if frame is None else "{file}:{line} in {function}: {code}".format(**frame).rstrip()


def module_of(node: Node) -> str:
    """Return the user's module that computes a node, `encoder.layers.3.norm`; empty at the top, for inputs.

    A node of a backward graph belongs to the module whose gradient it computes. Checked on torch 2.11 to 2.15
    (`nn_module_stack`, `fwd_nn_module_stack`: paths with a class each, the innermost last).
    """
    if node.op in ("placeholder", "output"):
        return ""  # Dynamo's stack of an input is that of its first use
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    entries = stack.values() if isinstance(stack, Mapping) else ()
    paths = [entry[0] for entry in entries if isinstance(entry, tuple) and entry and type(entry[0]) is str]
    return _attribute_path(paths[-1], outermost=paths[0]) if paths else ""


def comment_of(node: Node) -> str:
    """Return the comment of a node in the text of its graph: the source line and the module."""
    frame, module = _frame_of(node), module_of(node)
    if frame is None:
        return f"{UNKNOWN}, in {module}" if module else UNKNOWN
    of = f" of {module}" if module else ""
    return "{file}:{line} in {function}{of}: {code}".format(**frame, of=of).rstrip()


def annotations_of(comment: str) -> dict[str, Any]:
    """Return the entries for `node.meta` that a comment describes, in the form that torch uses."""
    found: dict[str, Any] = {}
    source, module = _told(comment)
    if source is not None:
        file, line, function, code = source.group("file", "line", "function", "code")
        found["stack_trace"] = f'File "{file}", line {line}, in {function}\n    {code or ""}'
    if module:
        # Class names in place of classes, as torch.export writes it.
        found["nn_module_stack"] = {module: (module, "")}
    return found


def origin_in(comment: str | None) -> tuple[str, str]:
    """Return the source line and the module that a comment names, or empty texts. Needs no torch."""
    source, module = _told(comment)
    if source is None:
        return "", module
    file, line, function, code = source.group("file", "line", "function", "code")
    return f"{file}:{line} in {function}: {code or ''}".rstrip(), module


def _told(comment: str | None) -> tuple[re.Match[str] | None, str]:
    source = _COMMENT.match(comment or "")
    told = source or _MODULE_ALONE.match(comment or "")
    return source, (told["module"] or "") if told is not None else ""


def _frame_of(node: Node) -> dict[str, str] | None:
    trace = node.meta.get("stack_trace")
    frames = list(_FRAME.finditer(trace)) if isinstance(trace, str) else []
    if not frames:
        return None
    own = [frame for frame in frames if "/site-packages/" not in frame["file"].replace("\\", "/")]
    frame = (own or frames)[-1].groupdict()
    # The file name alone: a bundle does not reveal the user's directories.
    frame["file"] = re.split(r"[\\/]", frame["file"])[-1]
    return {key: _printable(text).strip() for key, text in frame.items()}


def _attribute_path(path: str, outermost: str) -> str:
    """Return `encoder.layers.3` for `L['self'].encoder.layers[3]`.

    The variable that holds the model is part of it where the user's function calls it by that name.
    """
    steps: list[str] = []
    root = _ROOT.match(path)
    if root is not None:
        path = root["rest"]
        entered = outermost == root.string[: root.end("name") + 2]
        if root["scope"] == "G" or (entered and root["name"] not in _OF_DYNAMO):
            steps = [root["name"]]
    steps += [step["index"] or step["name"] or "" for step in _STEP.finditer(path)]
    written = ".".join(step for step in steps if step and step not in _NOT_WRITTEN)
    return re.sub(r"\s", "_", _printable(written))


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
