"""All ways to write a minimal repro as a script, from the most hand-written one to the last resort.

The last resort is the bundle's own standalone script (`standalone.py`), for what cannot be written by hand or
does not fail then: it keeps every value in files and the graph as it was captured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchrepro.bundle.read import OPERATORS, SCRIPT, TENSORS, VALUES
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Signature, Verdict
from torchrepro.script.call_script import CallScript
from torchrepro.script.document import Script
from torchrepro.script.expressions import Unwritable
from torchrepro.script.graph_script import GraphScript
from torchrepro.script.inputs import sizes_of_inputs
from torchrepro.script.names import names_of_inputs
from torchrepro.script.save_bundle import bundle_members


def each_script(repro: Repro, verdict: Verdict, *, header: Sequence[str] = ()) -> Iterator[Script]:
    """Yield the ways to write a failing repro, the one that a person would choose first; each text once.

    `header` are lines for the docstring. Nothing is run here but shapes: `engine/verify_script.py` checks
    whether a script fails as the repro does. Later ones are seldom needed.
    """
    writer = CallScript if repro.place is Place.BEFORE_CAPTURE else GraphScript
    seen: set[str] = set()
    reasons: list[str] = []
    for exact in (False, True):
        try:
            script = writer(repro, verdict, header, exact).script()
        except Unwritable as exc:
            reasons.append(str(exc))
            continue
        if script.text not in seen:
            seen.add(script.text)
            yield script
    try:
        yield bundle_script(repro, verdict, "" if seen else reasons[0])
    except TorchReproError:
        if not seen:
            raise


def first_script(repro: Repro, verdict: Verdict, *, header: Sequence[str] = ()) -> Script:
    """Return the first of them alone, which takes a fraction of the time of all."""
    return next(each_script(repro, verdict, header=header))


def bundle_script(repro: Repro, verdict: Verdict, reason: str = "") -> Script:
    """Return the standalone script of the bundle, with its files; `reason` says why it is needed."""
    expected = repro.expected or Signature.of(verdict)
    files = bundle_members(replace(repro, expected=expected), verdict, size_cap=1 << 62)
    text = files[SCRIPT]
    assert isinstance(text, bytes)
    side_files = {name: files[name] for name in (TENSORS, VALUES, OPERATORS) if name in files}
    remark = "the graph as it was captured, with its values in files"
    return Script(text.decode(), f"{remark}: {reason}" if reason else remark, side_files)


def input_names(repro: Repro) -> dict[int, str]:
    """Return what the scripts call the inputs, by number; those that the graph does not use have no name."""
    nodes = [node for node in repro.graph.graph.nodes if node.op == "placeholder"]
    names = names_of_inputs(repro.graph, sizes_of_inputs(repro.graph))
    return {number: names[node] for number, node in enumerate(nodes) if node in names}
