"""Random Python programs: the same from the same seed, valid, judged in every way, reduced."""

from __future__ import annotations

import ast
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchrepro.engine.check_bundle import check_bundle
from torchrepro.hunt import python_jobs
from torchrepro.hunt.generators.python_programs import PythonProgram, generate
from torchrepro.hunt.generators.python_world import HARNESS
from torchrepro.hunt.judge_programs import (
    ProgramVerdict,
    effects,
    judge_program,
    save_program,
)
from torchrepro.hunt.python_jobs import judge
from torchrepro.hunt.reduce_source import reduce_failure, reduce_program
from torchrepro.judge.models import Phases
from torchrepro.nouns.verdict import Kind, Stage, Verdict

SEEDS = st.integers(0, 1 << 32)
FAST = settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


def program(body: str, calls: str = "yield dict(x=torch.ones(3))", before: str = "") -> PythonProgram:
    text = f"import torch\n{before}\ndef program(x):\n{_indented(body)}\n\ndef calls():\n{_indented(calls)}\n"
    return PythonProgram(text + HARNESS)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


@FAST
@given(SEEDS)
def test_the_same_seed_gives_the_same_program(seed: int) -> None:
    made = generate(Random(seed))
    assert made == generate(Random(seed))
    ast.parse(made.source)
    assert made.lines >= 10


def test_seeds_differ() -> None:
    assert len({generate(Random(seed)) for seed in range(50)}) == 50


def test_most_programs_raise_nothing_in_plain_python_and_repeat_themselves() -> None:
    seen = [effects(generate(Random(seed))) for seed in range(60)]
    assert seen == [effects(generate(Random(seed))) for seed in range(60)]
    clean = [calls for calls in seen if all(facts.get("error", "Stop") == "Stop" for facts in calls)]
    assert len(clean) >= 50
    assert all(2 <= len(calls) <= 4 for calls in seen)


@FAST
@given(SEEDS)
def test_a_program_without_one_of_its_statements_is_one(seed: int) -> None:
    """Reducing relies on it: variables exist before the first random statement."""
    made, random = generate(Random(seed)), Random(seed)
    tree = ast.parse(made.source)
    function = next(
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "program"
    )
    if len(function.body) > 3:
        del function.body[random.randrange(2, len(function.body) - 1)]
    assert effects(PythonProgram(ast.unparse(tree)))


def test_healthy_programs_give_no_alarm() -> None:
    healthy = [
        program("return x + 1, x.shape"),
        program("log = []\nfor i in range(3):\n    log.append(x * i)\nprint(len(log))\nreturn log"),
        program("STATE['n'] += 1\nreturn x * STATE['n']", before="STATE = {'n': 0}"),
        program("raise ValueError('no')"),
    ]
    assert [judged.verdict.kind for judged in map(judge_program, healthy)] == [Kind.PASS] * 4


def test_a_module_that_raises_is_invalid_and_one_that_draws_addresses_is_not_comparable() -> None:
    assert judge_program(program("return x", calls="raise ValueError")).verdict.kind is Kind.INVALID
    changing = program("return next(NUMBERS)", before="import time\nNUMBERS = iter([time.perf_counter()])")
    assert judge_program(changing).verdict.kind is Kind.NOT_COMPARABLE


NEEDLE = """\
y, log = x * 2, []
for i in range(3):
    log.append(i)
pair = [x, y]
pair.reverse()
with torch.no_grad():
    z = torch.stack(pair).sum(0)
return pair, z, sorted(log)"""


@pytest.mark.slow
def test_a_planted_bug_of_dynamo_is_found_named_and_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.variables import ConstantVariable, ListVariable

    call_method = ListVariable.call_method

    def forgetful(self: Any, tx: Any, name: str, *rest: Any) -> Any:
        return ConstantVariable.create(None) if name == "reverse" else call_method(self, tx, name, *rest)

    monkeypatch.setattr(ListVariable, "call_method", forgetful)
    found = judge_program(program(NEEDLE, "yield dict(x=torch.arange(3.0))"))
    assert (found.way, found.verdict.kind, found.verdict.stage) == ("dynamo", Kind.MISMATCH, Stage.CAPTURE)
    smaller = reduce_failure(found)
    assert smaller.bucket.startswith("dynamo | mismatch | capture | call <n>: result")
    assert "reverse()" in smaller.program.source
    assert smaller.program.lines <= 8, smaller.program.source


def test_reducing_leaves_nothing_that_is_not_needed() -> None:
    made = program(NEEDLE)
    smallest = reduce_program(made, lambda each: "pair.reverse()" in each.source)
    assert smallest.source.removesuffix(HARNESS).split() == ["pair.reverse()"]


def test_a_candidate_that_cannot_be_written_as_python_is_left_out() -> None:
    """Replacing a part of an f-string by an expression gives a tree that `ast.unparse` refuses."""
    made = program("text = f'{x.shape[0]} of {[1, 2]!r}'\nkept = len(text)\nreturn kept")
    smallest = reduce_program(made, lambda each: "f'" in each.source or 'f"' in each.source)
    assert smallest.lines < made.lines


def test_a_hunt_is_told_what_became_of_each_seed() -> None:
    payload = {"seeds": ["python-1", "python-2"], "alone": False, "sources": [], "bundle": ""}
    told = judge(None, payload, Phases())  # type: ignore[arg-type]
    assert [entry["seed"] for entry in told] == payload["seeds"]
    assert {entry["kind"] for entry in told} <= {"pass", "suspect"}


def test_what_comes_after_the_verdict_is_not_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed while it compiles has met a hang; one that reduces or saves has not."""
    failing = ProgramVerdict(program("return x"), Verdict(Kind.MISMATCH), "dynamo")

    def judged(made: PythonProgram, phase: Phases) -> ProgramVerdict:
        phase("compile")
        return failing

    doing = {}
    phases = Phases()
    monkeypatch.setattr(python_jobs, "judge_program", judged)
    for name, answer in (("reduce_failure", failing), ("save_program", tmp_path)):

        def done(*_: Any, name: str = name, answer: Any = answer, **__: Any) -> Any:
            doing[name] = phases.last
            return answer

        monkeypatch.setattr(python_jobs, name, done)
    payload = {"seeds": ["python-1"], "alone": True, "sources": [], "bundle": str(tmp_path)}
    judge(None, payload, phases)  # type: ignore[arg-type]
    assert doing == {"reduce_failure": "reduce", "save_program": "reduce"}
    doing.clear()
    judge(None, {**payload, "reduce": False}, phases)  # type: ignore[arg-type]
    assert doing == {"save_program": "save"}


@pytest.mark.slow
def test_a_failing_program_is_saved_as_a_bundle_that_fails(tmp_path: Path) -> None:
    """The value of `yield from` is lost by Dynamo of torch 2.13."""
    generators = "def inner():\n    yield 1\n    return 'all'\ndef outer():\n    yield (yield from inner())"
    found = judge_program(program("return x + 1, list(outer())", before=generators), ("dynamo",))
    if not found.verdict.fails:
        pytest.skip(f"torch {torch.__version__} returns the value of `yield from`")
    saved = save_program(found, tmp_path)
    assert (saved / "manifest.json").exists(), saved
    assert check_bundle(saved, trusted=("source",)).verdict.kind is Kind.MISMATCH
