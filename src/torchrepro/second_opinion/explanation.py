"""CaptureExplanation: how one call became graphs, as data. Needs no torch: it is sent between processes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.graph_breaks import BreakKind
from torchrepro.nouns.sections import html
from torchrepro.nouns.verdict import as_data
from torchrepro.report.text import WIDTH, Line, lines_of_sections

if TYPE_CHECKING:
    from rich.text import Text


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's program."""

    file: str
    line: int
    function: str
    text: str = ""
    """The line itself, as in the file; empty if it is unknown."""


@dataclass(frozen=True, slots=True)
class GraphInput:
    """An input tensor of a graph."""

    source: str
    """Where it is read from in each call: `x`, `self.encoder.weight`."""
    tensor: str
    """`float32 (3, 4)`."""


@dataclass(frozen=True, slots=True)
class CapturedRegion:
    """A part of a function that runs without Python: guards, at most one graph, and how it ends."""

    number: int
    """From 1, in the order of capture."""
    start: Place
    end: Place | None
    """Where Python takes over; None: the function returns."""
    ops: int
    """Operations in the graph; 0: there are no tensor operations, so there is no graph."""
    graph: str
    """The graph as Python text."""
    inputs: tuple[GraphInput, ...]
    guards: tuple[str, ...]
    """What must hold for the region to be reused, each as a sentence."""
    code: str
    """The generated function around the graph: reads inputs, rebuilds values, writes changes back."""
    depth: int = 0
    """0: in the function itself; 1: in a function that it calls at a break, and so on."""
    after: int | None = None
    """Number of the break at its end; None: the function returns, or the break is in what it `calls`."""
    calls: str = ""
    """The function that Python calls at its end, which has a break inside and is captured on its own."""


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A place that cannot be part of a graph."""

    number: int
    kind: BreakKind
    reason: str
    """The fact, in one line."""
    hint: str
    """What to write instead; empty if that is unknown."""
    place: Place
    expression: str = ""
    """The part of the line that Python runs; empty: the whole line."""
    column: int = 0
    """Where in the line the expression begins."""
    frames: tuple[Place, ...] = ()
    """From the explained function to the place, the place last."""
    rest_of: str = ""
    """The function whose rest Python runs too; empty: only this place."""


@dataclass(frozen=True, slots=True)
class InlinedFunction:
    """A function that was inlined into its caller's graph."""

    name: str
    file: str
    line: int
    times: int


@dataclass(frozen=True, slots=True)
class Agreement:
    """Whether a captured call agrees with Python: its result, and the arguments after the call."""

    who: str
    """`torchrepro` or `dynamo`."""
    same: bool
    detail: str = ""
    """What differs; empty if nothing does."""


@dataclass(frozen=True, slots=True)
class SecondOpinion:
    """How TorchDynamo captures the same call, on clones, and which frontend agrees with Python."""

    graphs: int
    ops: int
    breaks: tuple[tuple[str, str], ...]
    """Its reasons, each with `file:line` (empty if it has none)."""
    raised: str = ""
    """Its error, if it fails."""
    agreements: tuple[Agreement, ...] = ()
    note: str = ""
    """Why the comparison is weak, if it is: Python is not deterministic."""

    @property
    def agree(self) -> bool:
        return all(each.same for each in self.agreements)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureExplanation:
    """How one call became graphs. `print(explanation)` is for people, `to_dict()` for programs.

    A region is captured once and may run often: a loop that breaks in each round shows its regions once.
    """

    name: str
    regions: tuple[CapturedRegion, ...]
    breaks: tuple[GraphBreak, ...]
    inlined: tuple[InlinedFunction, ...] = ()
    raised: str = ""
    """The error with which the call ended; empty: it returned."""
    notes: tuple[str, ...] = ()
    dynamo: SecondOpinion | None = None
    result: Any = field(default=None, repr=False)
    """What the call returned; not part of `to_dict()`."""
    error: Exception | None = field(default=None, repr=False)
    """What the call raised; not part of `to_dict()`."""

    @property
    def graphs(self) -> tuple[CapturedRegion, ...]:
        """The regions that have a graph."""
        return tuple(region for region in self.regions if region.ops)

    @property
    def ops(self) -> int:
        return sum(region.ops for region in self.regions)

    @property
    def whole(self) -> bool:
        """Whether the call is one graph, as `fullgraph=True` requires."""
        return not self.breaks and len(self.regions) == 1

    @property
    def native(self) -> tuple[str, ...]:
        """What Python runs itself: the expressions at breaks, and the functions whose rest it runs."""
        found = [
            f"the rest of {each.rest_of}" if each.rest_of else each.expression or each.place.text.strip()
            for each in self.breaks
        ]
        # A loop is shown as its first line.
        return tuple(dict.fromkeys(text.partition("\n")[0] for text in found))

    @property
    def summary(self) -> str:
        """One paragraph for readers who do not know compilers."""
        from torchrepro.second_opinion.rendering import summary

        return summary(self)

    def lines(self, width: int = WIDTH, **details: bool) -> Iterator[Line]:
        """Yield the explanation for a terminal; `guards`, `graphs` and `code` add details of regions."""
        from torchrepro.second_opinion.rendering import sections_of

        for line in lines_of_sections(sections_of(self, **details), width):
            # Sections do not wrap code.
            parts = textwrap.wrap(line.text, width, subsequent_indent=" " * 8)
            yield from [line] if len(line.text) <= width else (Line(part, line.style) for part in parts)

    def text(self, width: int = WIDTH, **details: bool) -> str:
        """Return `lines` as plain text."""
        return "\n".join(line.text for line in self.lines(width, **details))

    def __str__(self) -> str:
        """Return plain text of 80 columns."""
        return self.text()

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text("\n").join(Text(line.text, style=line.style) for line in self.lines())

    def _repr_html_(self) -> str:
        from torchrepro.second_opinion.rendering import sections_of

        return "".join(map(html, sections_of(self)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; `from_dict` reads it."""
        fields = asdict(replace(self, result=None, error=None))
        del fields["result"], fields["error"]
        fields |= {"graphs": len(self.graphs), "ops": self.ops, "whole": self.whole}
        data: dict[str, Any] = as_data({**fields, "summary": self.summary, "native": list(self.native)})
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CaptureExplanation:
        import msgspec

        return msgspec.convert(dict(data), cls)


@dataclass(frozen=True, slots=True)
class Explained:
    """How a user's model becomes graphs, and whether the requested properties hold."""

    explanation: CaptureExplanation
    fullgraph: bool = False
    """Whether one graph was requested."""
    verified: Agreement | None = None
    """Agreement with plain Python; None: not requested."""

    @property
    def failed(self) -> tuple[str, ...]:
        """The requested properties that do not hold, a line each."""
        told, dynamo = self.explanation, self.explanation.dynamo
        found = []
        if self.fullgraph and not told.whole:
            found.append("it is not one graph, as --fullgraph asks for")
        agreements = [] if self.verified is None else [self.verified]
        agreements += [] if dynamo is None else dynamo.agreements
        found += [f"{each.who} differs from Python: {each.detail}" for each in agreements if not each.same]
        return tuple(dict.fromkeys(found))

    @property
    def exit_code(self) -> int:
        """0 captured, in any number of graphs; 1 not as requested (one graph, the result of Python)."""
        return 1 if self.failed else 0
