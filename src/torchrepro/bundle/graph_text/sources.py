"""Where in the user's program a node comes from, as a comment: `model.py:12 in forward: y = self.fc(x)`."""

from __future__ import annotations

import re

from torch.fx.node import Node

_FRAME = re.compile(
    r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>[^\n]+)\n\s*(?P<code>[^\n]*)'
)
_COMMENT = re.compile(r"(?P<file>.+?):(?P<line>\d+) in (?P<function>.+?): (?P<code>.*)\Z")

UNKNOWN = "source unknown"


def source_of(node: Node) -> str | None:
    """The last frame of the user in a node's stack trace, None where there is no trace."""
    trace = node.meta.get("stack_trace")
    frames = list(_FRAME.finditer(trace)) if isinstance(trace, str) else []
    if not frames:
        return None
    own = [frame for frame in frames if "/site-packages/" not in frame["file"].replace("\\", "/")]
    frame = (own or frames)[-1]
    # The name alone: where a user keeps their files is nobody's business.
    file = re.split(r"[\\/]", frame["file"])[-1]
    line = f"{file}:{frame['line']} in {frame['function']}: {frame['code'].strip()}"
    return "".join(character if character.isprintable() else " " for character in line).rstrip()


def stack_trace_of(comment: str | None) -> str | None:
    """A stack trace of one frame that says what the comment says."""
    source = _COMMENT.match(comment or "")
    if source is None:
        return None
    file, line, function, code = source.group("file", "line", "function", "code")
    return f'File "{file}", line {line}, in {function}\n    {code}'
