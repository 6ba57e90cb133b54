"""Contents: everything in a report as plain data, which is the only input of every format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchrepro.nouns.environment import Environment
from torchrepro.nouns.results import Adoption, Located
from torchrepro.nouns.verdict import Verdict
from torchrepro.report.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph, for its picture."""

    name: str
    op: str
    kind: str
    """`input`, `constant`, `op`, `output`."""
    inputs: tuple[str, ...] = ()
    """Names of the nodes that it reads."""
    module: str = ""
    """Path of the user's module that it belongs to, by which nodes are collapsed."""
    source: str = ""
    shape: str = ""
    """`float32[8, 64]`."""
    guilty: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """A graph to be drawn."""

    title: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ErrorMap:
    """How the errors of one wrong tensor are distributed, and where in it they are."""

    path: str
    """`out[0]`, `inputs[1]`."""
    shape: tuple[int, ...]
    against: str = "float64"
    """The reference of the errors: `float64`, or `eager` if there is no truth."""
    edges: tuple[float, ...] = ()
    """Edges of the histogram: decimal logarithms of the error of an element."""
    eager: tuple[int, ...] = ()
    compiled: tuple[int, ...] = ()
    """Elements in each bin; those without any error are not counted."""
    rows: tuple[tuple[float | None, ...], ...] = ()
    """A heat map of at most 64 by 64: the largest compiled error in each cell. None: the cell has no element;
    `inf`: one is not finite and should be, or the other way round (in JSON the string "inf")."""
    dims: tuple[str, str] = ("", "")
    """Labels of the rows and columns of the heat map: `dims 0 to 1 (96)`, `dim 2 (768)`."""
    non_finite: int = 0
    """Elements of the compiled result whose error is not finite: in the heat map, but in no bin."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A line that differs between two environments."""

    name: str
    here: str
    there: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A report, top to bottom."""

    title: str
    """The title of an issue: `torch.compile: wrong result of aten.erf on CPU`. Plain text, no markup."""
    sentence: str
    """The verdict in one sentence."""
    bundle: str
    verdict: Verdict | None = None
    script: str = ""
    """The minimal script, or the bundle's own if nothing was minified."""
    script_is_minimal: bool = False
    script_verified: bool = False
    guilt: str = ""
    """The culprit and the confidence, in a sentence or two; empty if nothing was located."""
    located: Located | None = None
    minimal: Picture | None = None
    original: Picture | None = None
    errors: tuple[ErrorMap, ...] = ()
    steps: tuple[Adoption, ...] = ()
    """Each best while minifying, the original first."""
    explained: tuple[str, ...] = ()
    environment: Environment | None = None
    differences: tuple[Difference, ...] = ()
    against: str = ""
    """Name of the other environment."""
    settings: Mapping[str, Any] | None = None
    """Ambient state that is not the default: configs, modes, environment variables."""
    traceback: str = ""
    next_steps: tuple[str, ...] = ()
    """What is missing, and the command that adds it: `torchrepro locate BUNDLE finds the culprit`."""
    notes: tuple[str, ...] = ()
    created: str = ""
    bucket: str = ""
    """The fingerprint of failures like this one (`report/bucket.py`)."""
    trace: str = ""
    """Name of the file with the trace of the script, to be attached to an issue."""
    evidence: Evidence | None = None
    """What maintainers ask first: what torch's own comparisons say, kernels, versions, labels."""

    def _repr_html_(self) -> str:
        from torchrepro.nouns.sections import Code, Lines, Section, html

        script = Code(self.script if self.script_is_minimal else "", "python", "script")
        told = Lines(tuple(line for line in (self.guilt, *self.next_steps) if line))
        return html(Section(self.sentence, (told, script)))

    @property
    def explained_elsewhere(self) -> tuple[str, ...]:
        """The lines that the header of the script does not contain."""
        return tuple(line for line in self.explained if line not in self.script)
