"""Number the graphs that capture makes of a program, as they come."""

from __future__ import annotations

import torch

from torchrepro.graph_text.source_lines import source_of
from torchrepro.nouns.origin import Origin


class Origins:
    """The graphs of one program so far."""

    def __init__(self) -> None:
        self.seen = 0
        self._numbers: dict[str, int] = {}

    def of(self, graph: torch.fx.GraphModule, *, below_aot: bool = False, backward: bool = False) -> Origin:
        """The origin of a graph that is just being compiled. What AOT makes of a graph is no new one."""
        code, compilation = _compilation()
        key = f"{code}/{compilation}"
        if code is None or not below_aot or key not in self._numbers:
            self._numbers[key] = self.seen
            self.seen += 1
        return Origin(
            number=self._numbers[key],
            seen=self.seen,
            compilation=compilation,
            backward=backward,
            source=beginning_of(graph),
        )


def beginning_of(graph: torch.fx.GraphModule) -> str:
    """The first line of the user in a graph: `model.py:12 in forward`."""
    for node in graph.graph.nodes:
        if node.op not in ("placeholder", "get_attr", "output"):
            found = source_of(node)
            if found:
                return found.partition(": ")[0]
    return ""


def _compilation() -> tuple[int | None, int]:
    """The code that is being compiled, by Dynamo's number, and how often it has been before.

    A backward graph that is compiled late has the numbers of its forward. Checked on torch 2.11 and 2.13
    (`CompileContext.current_compile_id`, whose numbers are None outside of Dynamo).
    """
    from torchrepro.torch_api.dynamo import CompileContext

    compile_id = CompileContext.current_compile_id()
    if compile_id is None:
        return None, 0
    return compile_id.frame_id, compile_id.frame_compile_id or 0
