"""Random programs: Python functions as text, in which every statement is right wherever it stands.

All variables exist before the first random statement, and inner functions share them (`nonlocal`). So any
statement can be left out, and what a failure shrinks to is short. A loop has a limit, a number stays small.
"""

from __future__ import annotations

import itertools
import linecache
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

PREAMBLE = """\
x, y, z, v = a, b, a + b, a
m, i, kept, log, d = 1, 0, None, [], {"p": a, "q": b}
"""
RESULT = "return x, y, z, v, n, m, i, kept, xs, d, log, box.value"
SHARED = "x, y, z, v, n, m, i, kept, xs, d, log"
ARGUMENTS = "a, b, n, flag, mode, xs, box"


@dataclass(frozen=True, slots=True)
class Program:
    """A function's text; printed as such when it fails."""

    source: str

    def __repr__(self) -> str:
        return f"Program('''\n{self.source}''')"

    def compile(self) -> Callable[..., Any]:
        """A new function, with globals of its own, whose lines a traceback can show."""
        name = f"<random program {next(_NUMBERS)}>"
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(keepends=True), name)
        namespace = {"torch": torch, "state": {"count": 0}, "layer": _layer(), "net": Net(), **_HELPERS}
        exec(compile(self.source, name, "exec"), namespace)
        return namespace["program"]  # type: ignore[no-any-return]


_NUMBERS = itertools.count(1)


class Stop(Exception):
    pass


class Noting:
    """A context manager that leaves a trace, and swallows what it is told to."""

    def __init__(self, log: list[str], swallow: bool = False) -> None:
        self.log, self.swallow = log, swallow

    def __enter__(self) -> Noting:
        self.log.append("in")
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        self.log.append("out" if kind is None else kind.__name__)
        return self.swallow and kind is Stop


class Box:
    """An argument with attributes."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value, self.count = value, 0

    def bump(self, by: int = 1) -> int:
        self.count += by
        return self.count % 5

    def loud(self, value: torch.Tensor) -> torch.Tensor:
        self.count += 1
        value = value + self.value
        print("loud", self.count)
        self.value = value * 0.5
        return value

    @property
    def half(self) -> torch.Tensor:
        return self.value * 0.5


def scaled(value: torch.Tensor, k: float = 0.5, *more: float, **named: float) -> torch.Tensor:
    return value * (k + sum(more) + sum(named.values()))


def swapped(first: Any, second: Any) -> tuple[Any, Any]:
    return second, first


def counted(values: list[torch.Tensor], limit: int = 2) -> Any:
    for number, value in enumerate(values):
        if number >= limit:
            return
        yield value


def stops(n: int) -> int:
    if n > 1:
        raise Stop(n)
    return n


def noisy(value: Any) -> Any:
    """Prints between two operations: where it is called a graph ends."""
    if isinstance(value, torch.Tensor):
        value = value * 2
    print("noisy", type(value).__name__)
    return value + 1 if isinstance(value, torch.Tensor) else value


def noisy_values(values: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    for value in values:
        print("next")
        yield value * 2


class Net(nn.Module):
    """A module that changes with every call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.scale: Any = 1
        self.calls = 0
        self.history: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.training:
            self.mean.mul_(0.5).add_(x.detach().mean())
            self.history.append(x)
        return x * self.scale + self.mean


def _layer() -> nn.Module:
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(4) * 0.5)
        layer.bias.fill_(0.25)
    return layer.requires_grad_(False)


_HELPERS = {
    "Stop": Stop,
    "Noting": Noting,
    "scaled": scaled,
    "swapped": swapped,
    "counted": counted,
    "stops": stops,
    "noisy": noisy,
    "noisy_values": noisy_values,
    "Box": Box,
}

# Expressions.

_NAMES = st.sampled_from(["x", "y", "z", "v", "a", "b"])
_TARGETS = st.sampled_from(["x", "y", "z", "v"])
_NUMBERS_TEXT = st.sampled_from(
    [
        "0",
        "1",
        "2",
        "n",
        "m",
        "i",
        "len(xs)",
        "a.shape[0]",
        "x.dim()",
        "int(flag)",
        "n % 3",
        "box.count",
        "len(d)",
    ]
)
_CONDITIONS = st.sampled_from(
    [
        "flag",
        "not flag",
        "n > m",
        "0 < n <= 2",
        "a.shape[0] > 3",
        "x is a",
        "len(xs) < 2",
        '"q" in d',
        'mode == "up"',
        "n and flag",
        "kept is None",
        "isinstance(kept, int)",
        "xs and xs[0] is x",
        'getattr(box, "extra", 0) > 1',
        "any(w is y for w in xs)",
    ]
)
_DATA_CONDITIONS = st.sampled_from(
    ["x.sum() > 0", "(y > z).any()", "a.mean().item() > 0", "bool((v == v).all())"]
)


def _expressions() -> st.SearchStrategy[str]:
    leaves = _NAMES | st.sampled_from(
        [
            "(xs or [a])[0]",
            'd.get("p", a)',
            "box.value",
            "box.half",
            "(xs[-1] if xs else b)",
            "torch.ones_like(a)",
        ]
    )

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        one = st.sampled_from(
            [
                "({0} * 0.5)",
                "({0} + 1)",
                "torch.tanh({0})",
                "{0}.relu()",
                "layer({0})",
                "scaled({0})",
                "scaled({0}, 0.25, *[0.5], k2=0.5)",
                "({0} * m)",
                "{0}.flip(0)",
                "({0} - {0}.mean(0))",
                "{0}.reshape(-1).reshape(a.shape)",
                "torch.cat([{0}, {0}], 1)[:, ::2]",
                "(lambda w: w + n)({0})",
                "sum((w * 0.5 for w in xs), {0})",
                "torch.stack([{0}] + [w for w in xs if w.dim() == 2]).mean(0)",
                "{0}.clone()",
            ]
        )
        two = st.sampled_from(
            [
                "({0} + {1})",
                "({0} * torch.sigmoid({1}))",
                "torch.where({0} > 0, {0}, {1})",
                "({0} if flag else {1})",
                "torch.maximum({0}, {1})",
                "swapped({0}, {1})[0]",
                "[{0}, {1}][n % 2]",
                '{{"up": {0}}}.get(mode, {1})',
                "torch.add({0}, {1}, alpha=0.5)",
            ]
        )
        return st.builds(str.format, one, inner) | st.builds(str.format, two, inner, inner)

    return st.recursive(leaves, larger, max_leaves=4)


_EXPRESSIONS = _expressions()

# Statements: lines, in which `{k}` stands for a name of the loop's own and `{return}` for leaving.

Lines = tuple[str, ...]


def _line(template: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[Lines]:
    return st.builds(lambda *texts: (template.format(*texts),), *parts)


def _simple() -> st.SearchStrategy[Lines]:
    value, target, number = _EXPRESSIONS, _TARGETS, _NUMBERS_TEXT
    fixed = st.sampled_from(
        [
            "x, y = y, x",
            "x = y",
            "x = x.detach()",
            "z = x[1:]; z = torch.cat([z, x[:1]])",
            "v = x.view(-1).view(a.shape) if x.is_contiguous() else x",
            "kept = iter(xs)",
            "kept = enumerate(xs)",
            'kept = {"x": x, "xs": xs}',
            "kept = box.bump",
            "kept = lambda w=x: w * n",
            "kept = (w * m for w in list(xs))",
            "x = next(iter(xs), x)",
            "x = net(x)",
            "net.scale = n",
            "net.history = xs",
            "net.train(flag)",
            'kept = {"k": [x, {"deep": y}]}',
            'isinstance(kept, dict) and kept.setdefault("ns", []).append(n)',
            "isinstance(kept, tuple) and log.append(len(kept))",
            "kept = xs.append; kept(x)",
            "xs = sorted(xs, key=lambda w: w.dim())",
            "x = max([x, y], key=lambda w: w.dim())",
            'x = type("Local", (), {"run": lambda self, w: w * n})().run(x)',
            'x = next(kept, x) if hasattr(kept, "__next__") and not isinstance(kept, enumerate) else x',
            "box = Box(x)",
            "box.items = xs",
            "box.other = box",
            "xs.extend(w * 0.5 for w in xs[:1])",
            "xs[:1] = [y, x]",
            "log.append(type(kept).__name__)",
            "log += [len(str(n))]",
            "n = n if n < 3 else 0; i = -i",
            "n = sum(1 for w in xs if w is x)",
            "m = len({w.shape for w in xs}) + len([*map(id, [])])",
            "d = dict(sorted(d.items()))",
            'd["q"] = d.get("q", x); d["q"] = d.pop("q")',
            'del d["p"]; d["p"] = y',
            "xs.reverse()",
            "kept = xs",
            "kept = n",
            "kept = (n, x)",
            "xs = list(xs)",
            "xs = xs[:2] + [x]",
            "xs and xs.pop()",
            "del xs[1:]",
            "xs = [w for w in xs if w is not x]",
            "box.count += 1",
            "i = box.bump(2)",
            "box.extra = n",
            'd.pop("q", None)',
            'state["count"] += 1',
            'log.append(f"{n}:{len(xs)}:{mode!r}")',
            "z = z.clone()",
            "xs = [w * 0.5 for w in counted(xs)]",
            "*_, v = [a, *xs]",
            "n, m = m, n",
            'd = {key: w for key, w in d.items() if key != "q"}',
            'd |= {"r": x}',
            "m = max([len(log), m]) % 4",
            "log.extend(sorted(d))",
        ]
    ).map(lambda text: (text,))
    breaking = st.sampled_from(
        [
            "print(n, len(xs))",
            "n = int(x.sum() > 0)",
            "log.append(str(y.dim()) + str(type(y.max().item())))",
            "torch._dynamo.graph_break()",
            "noisy(n)",
            "x = noisy(x) + 1",
            "xs.append(noisy(y))",
            "box.value = noisy(x); box.count += 1",
            "y = torch.where(noisy(x) > 0, noisy(y), x)",
            "n = max(noisy(m), 1)",
            "x = [*map(noisy, [x, y])][0]",
            "net.scale = noisy(m); x = net(x)",
            "x = box.loud(x)",
            'state["count"] = noisy(n) + 1',
            "m = [noisy(w).dim() for w in xs][:1] and 1",
        ]
    ).map(lambda text: (text,))
    return st.one_of(
        _line("{0} = {1}", target, value),
        _line("n = ({0} + {1}) % 5", number, number),
        _line("xs.append({0})", value),
        fixed,
        _line("{0} = {1} + 0; {0} += {2}", target, value, value),
        _line("{0}.mul_(0.5)", target),
        _line("{0} += {1}", target, value),
        _line("{0}[0] = {1}[-1]", target, value),
        _line("m = ({0} * 2 + {1}) % 4", number, number),
        _line("xs.insert({0}, {1})", number, value),
        _line('d["p"] = {0}', value),
        _line("d.update(q={0}, s={1})", value, value),
        _line("box.value = {0}", value),
        _line("{0}, kept = swapped({1}, {2})", target, number, value),
        _line("log.append(stops({0} % 2))", number),
        breaking,
    )


def _indented(lines: Lines) -> Lines:
    return tuple("    " + line for line in lines)


def _joined(blocks: list[Lines]) -> Lines:
    return tuple(line for block in blocks for line in block)


def _compound(inner: st.SearchStrategy[Lines]) -> st.SearchStrategy[Lines]:
    block = st.lists(inner, min_size=1, max_size=3).map(_joined).map(_indented)
    condition = st.one_of(_CONDITIONS, _CONDITIONS, _CONDITIONS, _DATA_CONDITIONS)

    def built(make: Callable[..., Lines], *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Lines]:
        return st.builds(make, *parts)

    return st.one_of(
        built(lambda c, body: (f"if {c}:", *body), condition, block),
        built(lambda c, body, other: (f"if {c}:", *body, "else:", *other), condition, block, block),
        built(lambda n, body: (f"for i in range({n}):", *body), st.integers(0, 3), block),
        built(lambda body: ("for v in list(xs)[:3]:", *body), block),
        built(
            lambda c, body: ("for i, v in enumerate([a, b]):", f"    if {c}:", "        break", *body),
            condition,
            block,
        ),
        built(
            lambda c, body, other: (
                "for i in range(3):",
                *body,
                f"    if {c}:",
                "        continue",
                "    m = i",
                "else:",
                *other,
            ),
            condition,
            block,
            block,
        ),
        built(lambda body: ("{k} = 0", "while {k} < 2:", "    {k} += 1", *body), block),
        built(lambda body: ("for v in noisy_values(list(xs)[:2]):", *body), block),
        built(lambda body: ("with torch.no_grad():", *body), block),
        built(lambda body: ("with Noting(log):", *body), block),
        built(
            lambda n, body: ("with Noting(log, swallow=True):", *body, f"    stops({n})"),
            _NUMBERS_TEXT,
            block,
        ),
        built(
            lambda n, body, other: (
                "try:",
                *body,
                f"    stops({n})",
                "except Stop as error:",
                "    log.append(str(error))",
                *other,
            ),
            _NUMBERS_TEXT,
            block,
            block,
        ),
        built(lambda body, other: ("try:", *body, "finally:", *other), block, block),
        built(
            lambda body, value, argument: (
                "def {k}(w, u=n):",
                f"    nonlocal {SHARED}",
                *body,
                f"    return w + {value}",
                f"x = {{k}}({argument})",
            ),
            block,
            _EXPRESSIONS,
            _EXPRESSIONS,
        ),
        built(lambda c, body: (f"if {c}:", *body, "    {return}"), _CONDITIONS, block),
        built(
            lambda body, other: (
                "match (n, mode):",
                '    case (0 | 1, "up"):',
                *_indented(body),
                "    case (int(i), _) if i > 2:",
                *_indented(other),
            ),
            block,
            block,
        ),
    )


def _settled(lines: Lines) -> Lines:
    """Each loop and inner function gets a name of its own; a return inside an inner function is left out."""
    numbers = itertools.count(1)
    names: dict[int, str] = {}
    functions: set[int] = set()
    settled = []
    for line in lines:
        depth = len(line) - len(line.lstrip())
        names = {at: name for at, name in names.items() if at <= depth}
        functions = {at for at in functions if at < depth}
        if line.lstrip().startswith(("{k} = 0", "def {k}")):
            names[depth] = f"k{next(numbers)}"
        if line.lstrip().startswith("def"):
            functions.add(depth)
        text = line.replace("{k}", names[max(names)]) if names else line
        settled.append(text.replace("{return}", "pass" if functions else RESULT))
    return tuple(settled)


def programs(max_statements: int = 6) -> st.SearchStrategy[Program]:
    """Functions of tensors `a` and `b`, a number, a flag, a word, a list of tensors and an object."""
    statements = st.recursive(_simple(), _compound, max_leaves=8)
    body = st.lists(statements, min_size=1, max_size=max_statements).map(_joined).map(_settled)
    return body.map(_program)


def _program(lines: Lines) -> Program:
    inner = textwrap.indent(PREAMBLE + "\n".join((*lines, RESULT)), "    ")
    return Program(f"def program({ARGUMENTS}):\n{inner}\n")
