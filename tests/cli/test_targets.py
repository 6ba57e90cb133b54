"""`FILE.py:FUNCTION` with the same options means the same to every verb."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest
from commands import torchrepro
from typer.testing import CliRunner
from user_files import write_module

from torchrepro import pipeline
from torchrepro.catch import catch_target
from torchrepro.cli.app import app
from torchrepro.cli.options import model_request
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Frontend, ModelRequest
from torchrepro.nouns.verdict import Kind

OPTIONS = {
    "--backend aot_eager": {"backend": "aot_eager"},
    "--mode max-autotune": {"mode": "max-autotune"},
    "--option epilogue_fusion=False": {"option": ["epilogue_fusion=False"]},
    "--dynamic": {"dynamic": True},
    "--static": {"dynamic": False},
    "--backward": {"backward": True},
    "--forward-only": {"backward": False},
    "--amp bfloat16": {"amp": "bfloat16"},
    "--device cpu": {"device": "cpu"},
    "--strict": {"strict": True},
    "--tol 0.5": {"tol": 0.5},
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ModelRequest]:
    """What each verb passes to the one reader of targets."""
    requests: list[ModelRequest] = []

    def ask(request: ModelRequest, *_: Any, **__: Any) -> Any:
        requests.append(request)
        raise TorchReproError("asked")

    for name in ("compare_model", "catch"):
        monkeypatch.setattr(pipeline, name, ask)
    return requests


@pytest.mark.parametrize("verb", ["compare", "minify", "locate"])
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_means_the_same_to_every_verb(verb: str, option: str, asked: list[ModelRequest]) -> None:
    result = CliRunner().invoke(app, [verb, "model.py:build", *option.split()])
    assert result.exit_code == 125, result.output
    assert asked == [model_request("model.py:build", **OPTIONS[option])]  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", ["minify", "locate"])
@pytest.mark.parametrize("target", ["bundle", "program.py"])
def test_options_of_a_function_are_refused_for_anything_else(verb: str, target: str, tmp_path: Path) -> None:
    path = tmp_path / target
    path.write_text("")
    result = CliRunner().invoke(app, [verb, str(path), "--backward", "--mode", "max-autotune"])
    assert result.exit_code == 125
    assert "it says itself how it is run (mode, backward)" in result.output


# A backend that is wrong in one way at a time: every option and every word of a file must reach it.
FILE = """
    import torch

    def build():
        return {model}, ({inputs})

    {more}

    def f(x):
        return torch.tanh(x)

    def of_a_pair(pair):
        return pair[0] * pair[1]

    def two(x, *, factor):
        return x * factor

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    def always(gm, inputs, **kwargs):
        return lambda *args: tuple(2 * value for value in gm(*args))

    def in_backward(gm, inputs, **kwargs):
        return lambda *args: tuple(Wrong.apply(value) for value in gm(*args))

    def with_mode(gm, inputs, *, mode=None, options=None):
        wrong = mode == "wrong" or (options or {{}}).get("scale") == 2
        return always(gm, inputs) if wrong else gm

    def under_autocast(gm, inputs, **kwargs):
        return always(gm, inputs) if torch.is_autocast_enabled("cpu") else gm

    def without_gradients(gm, inputs, **kwargs):
        return gm if torch.is_grad_enabled() else always(gm, inputs)
"""
PLAIN = {"model": "f", "inputs": "torch.ones(3),", "more": ""}
CALL = "def call(model, inputs): return model(inputs)"
POST = "def post(model, out, inputs): return {'sum': out.sum() + inputs[0].sum()}"
CASES: dict[str, tuple[dict[str, str], str, dict[str, Any], str]] = {
    "plain": ({}, "always", {}, "mismatch"),
    "call": (
        {"model": "of_a_pair", "inputs": "torch.ones(3), torch.ones(3)", "more": CALL},
        "always",
        {},
        "mismatch",
    ),
    "post": ({"more": POST}, "always", {}, "mismatch"),
    "call and post": (
        {"model": "of_a_pair", "inputs": "torch.ones(3), torch.ones(3)", "more": CALL + "\n\n    " + POST},
        "always",
        {},
        "mismatch",
    ),
    "module with call": (
        {"model": "torch.nn.Linear(3, 3)", "more": "def call(model, inputs): return model(*inputs) + 1"},
        "always",
        {},
        "mismatch",
    ),
    "keywords and post": (
        {"model": "two", "inputs": "torch.ones(3),), dict(factor=torch.ones(3)", "more": POST},
        "always",
        {},
        "mismatch",
    ),
    "backward not asked for": ({}, "in_backward", {}, "pass"),
    "backward": ({}, "in_backward", {"backward": True}, "mismatch"),
    "forward only": (
        {"inputs": "torch.ones(3, requires_grad=True),"},
        "in_backward",
        {"backward": False},
        "pass",
    ),
    "mode": ({}, "with_mode", {"mode": "wrong"}, "mismatch"),
    "no mode": ({}, "with_mode", {}, "pass"),
    "option": ({}, "with_mode", {"option": ["scale=2"]}, "mismatch"),
    "amp": ({}, "under_autocast", {"amp": "bfloat16"}, "mismatch"),
    "no amp": ({}, "under_autocast", {}, "pass"),
    "NO_GRAD": ({"more": "NO_GRAD = True"}, "without_gradients", {}, "mismatch"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_saved_of_a_function_fails_exactly_if_comparing_it_does(case: str, tmp_path: Path) -> None:
    from torchrepro.bundle.load import load_verified
    from torchrepro.bundle.read import read_source_text
    from torchrepro.execute.judge_repro import judge_repro
    from torchrepro.execute.user_model import judge_model, keep_call, record

    words, backend, options, kind = CASES[case]
    file = textwrap.dedent(FILE.format(**{**PLAIN, **words}))
    module = write_module(tmp_path, file)
    request = model_request(f"{module.__file__}:build", backend=f"{module.__name__}:{backend}", **options)
    assert judge_model(request).kind.value == kind

    payload = {"request": msgspec.to_builtins(request), "size_cap": 1 << 30}
    graphs = record({**payload, "directory": str(tmp_path)}, lambda phase: None)["bundles"]
    whole = keep_call({**payload, "path": str(tmp_path / "whole")}, lambda phase: None)
    assert [judge_repro(load_verified(Path(each))).kind.value for each in (*graphs, whole)] == [kind, kind]
    for each in (*graphs, whole):
        assert f"def {backend}(" in read_source_text(Path(each)), "the backend is in a file of the user"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("def call(model): return model()", "write call(model, inputs)"),
        ("def post(out): return out", "write post(model, output, inputs)"),
        ("call = 3", "call of .* is a int, not a function"),
    ],
)
def test_a_word_of_the_file_that_cannot_be_called_so_is_one_clear_line(
    more: str, words: str, tmp_path: Path
) -> None:
    from torchrepro.execute.user_model import load_trial

    module = write_module(tmp_path, textwrap.dedent(FILE.format(**{**PLAIN, "more": more})))
    with pytest.raises(TorchReproError, match=words.replace("(", r"\(").replace(")", r"\)")):
        load_trial(ModelRequest(f"{module.__file__}:build"))


METHODS = """
    import torch

    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.tanh(x)

        def encode(self, x):
            return self(x) * 2

    def build():
        return Model(), (torch.ones(3),)

    def call(model, inputs):
        return model.{method}(*inputs)
"""


@pytest.mark.parametrize("frontend", Frontend)
@pytest.mark.parametrize("method", ["__call__", "encode"])
def test_a_call_may_use_another_method_and_it_is_noted_that_nothing_is_compiled(
    frontend: Frontend, method: str, tmp_path: Path
) -> None:
    from torchrepro.execute.user_model import judge_model
    from torchrepro.second_opinion.explain_call import explain_model

    module = write_module(tmp_path, textwrap.dedent(METHODS.format(method=method)))
    request = model_request(f"{module.__file__}:build", backend="eager", frontend=frontend)
    verdict = judge_model(request)
    assert verdict.kind is Kind.PASS
    assert any(note.startswith("nothing was compiled") for note in verdict.notes) is (method == "encode")

    payload = {"request": msgspec.to_builtins(request), "verify": True, "dynamo": True}
    explained = explain_model(payload, lambda phase: None)
    assert explained["graphs"] == (0 if method == "encode" else 1)
    assert explained["verified"]["same"], explained["verified"]
    assert all(each["same"] for each in explained["dynamo"]["agreements"]), explained["dynamo"]


@pytest.mark.parametrize("verb", [pipeline.minify, pipeline.locate])
def test_a_target_that_cannot_be_run_leaves_no_directory_but_the_users_own(
    verb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: ModelRequest, **_: Any) -> Any:
        raise TorchReproError(f"model.py has no {request.target!r}")

    monkeypatch.setattr(catch_target, "compare_model", refuse)
    (tmp_path / "model.py").write_text("")
    (tmp_path / "mine").mkdir()
    for out in (None, tmp_path / "new", tmp_path / "mine"):
        with pytest.raises(TorchReproError, match="has no"):
            verb(f"{tmp_path / 'model.py'}:wrong", out=out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "model.py"]


@pytest.mark.slow
@pytest.mark.thorough
def test_minify_runs_a_function_as_compare_does(tmp_path: Path) -> None:
    words, backend, _, _ = CASES["call and post"]
    (tmp_path / "model.py").write_text(textwrap.dedent(FILE.format(**{**PLAIN, **words})))
    target = ("model.py:build", "--backend", f"model:{backend}", "--backward", "--json")
    compared = torchrepro("compare", *target, cwd=tmp_path)
    assert compared.returncode == 1, compared.stderr
    minified = torchrepro("minify", *target, "--no-explain", cwd=tmp_path)
    assert minified.returncode == 0, minified.stderr
    assert json.loads(minified.stdout)["reproduces"]
    assert json.loads(compared.stdout)["verdict"] in json.loads(minified.stdout)["signature"]
    script = json.loads(minified.stdout)["script"]
    assert Path(script).read_text().startswith('"""torch.compile with always gives a wrong result')
    run = subprocess.run([sys.executable, script], cwd="/", capture_output=True, text=True)
    assert "AssertionError" in run.stderr, "the script brings the backend along, without model.py"
