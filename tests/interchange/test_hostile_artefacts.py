"""Hostile artefacts under an import in this process: no command, no connection, no pickle, no other file."""

from __future__ import annotations

import io
import os
import pickle
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from artefact_text import ONE_TENSOR, artefact

from tests.bundle.test_hostile_bundles import audited
from torchrepro.interchange.find_artefacts import Payload, find_artefacts
from torchrepro.interchange.import_artefact import import_artefact
from torchrepro.interchange.read_artefact import read_artefact
from torchrepro.nouns.errors import TorchReproError

SECONDS = 10.0
_RUN = "__import__('os').system('touch was-here')"
_DIGEST = "b" * 40
_STORED = ONE_TENSOR.replace("None, 12", f"'{_DIGEST}', 12")

HOSTILE = {
    "code_at_the_top": artefact(top=_RUN),
    "code_in_a_condition": artefact(top=f"if {_RUN}:\n    pass"),
    "code_in_a_decorator": artefact().replace("class Repro", f"@{_RUN}\nclass Repro"),
    "code_as_a_base": artefact().replace("class Repro(torch.nn.Module)", f"class Repro({_RUN})"),
    "code_in_a_default": artefact(parameters=f"x={_RUN}"),
    "code_in_an_annotation": artefact(parameters=f"x: {_RUN}"),
    "code_in_a_node": artefact(f"y = {_RUN}", "return (y,)"),
    "code_in_an_argument": artefact(f"y = torch.sin({_RUN})", "return (y,)"),
    "code_in_a_string": artefact(f'y = torch._assert(x, "{_RUN}")', "return (x,)"),
    "code_in_a_buffer": artefact(state=f"self.register_buffer('b', tensor([{_RUN}]))"),
    "code_in_a_module": artefact(state=f"self.m = Linear({_RUN}, 2)"),
    "a_name_that_is_code": artefact(state=f'self.register_buffer("b; {_RUN}", tensor([1]))'),
    "code_in_a_size": artefact(load=ONE_TENSOR.replace("(3,)", f"({_RUN},)")),
    "code_in_a_symbol": artefact(load=f'def load_args(reader):\n    reader.symint(3, expr="{_RUN}")'),
    "code_in_a_dtype": artefact(load=ONE_TENSOR.replace("is_leaf", f"dtype={_RUN}, is_leaf")),
    "code_in_load_args": artefact(load=f"def load_args(reader):\n    {_RUN}"),
    "a_setting_that_runs": artefact(top="torch._inductor.config.cpp.cxx = ('evil',)"),
    "a_compiler_that_runs": artefact(place="after_dynamo").replace(
        "accuracy=", "backend='evil:run', accuracy="
    ),
    "a_path_as_a_storage": artefact(load=ONE_TENSOR.replace("None, 12", "'../../../etc/passwd', 12")),
    "powers_without_end": artefact(load=ONE_TENSOR.replace("(3,)", "(9**9**9**9,)")),
    "products_without_end": artefact(load=ONE_TENSOR.replace("(3,)", f"({'9999999999*' * 3000}1,)")),
    "a_number_of_a_million_digits": artefact(f"y = x + 0x{'f' * 1_000_000}", "return (y,)"),
    "a_module_of_terabytes": artefact(
        "y = self.m(x)", "return (y,)", state="self.m = Linear(3, 99999999999)"
    ),
    "a_module_of_lists": artefact("y = self.m(x)", "return (y,)", state="self.m = Sequential([[[]]])"),
    "deep_nesting": artefact("y = torch.sin(" + "[" * 150 + "]" * 150 + ")", "return (y,)"),
    "ten_thousand_inputs": artefact(parameters=", ".join(f"x{n}" for n in range(10_000))),
    "a_storage_that_is_a_pickle": artefact(load=_STORED),
    "control_characters": artefact("y = torch.sin(x)  # \x1b]0;evil\x07", "return (y,)"),
    "no_python": "class Repro(\ndef load_args(",
}


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch was-here",)


def plant_storage(directory: Path) -> None:
    """Write what `torch.save` writes, with a pickle that runs a command."""
    (directory / "storages").mkdir(parents=True)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps(_Bomb()))
        archive.writestr("a/data/0", b"\0" * 12)
    (directory / "storages" / _DIGEST).write_bytes(content.getvalue())


def _is_ours(event: str, arguments: Any, place: Path) -> bool:
    """Whether an import does it by itself: write the bundle, ask the compiler of this machine its version."""
    if event == "subprocess.Popen":
        return list(arguments[1][1:]) == ["--version"]
    return event == "open" and str(arguments[0]).startswith(str(place))


@pytest.fixture(scope="module", autouse=True)
def _imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import what an import imports when it first runs: that opens files of its own."""
    place = tmp_path_factory.mktemp("first")
    import_artefact(Payload("repro", artefact(), place / "repro.py"), place / "bundle")


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_runs_and_an_answer_comes_soon(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plant_storage(tmp_path)
    file = tmp_path / "repro.py"
    file.write_text(HOSTILE[name])
    started = time.perf_counter()
    refused = None
    with audited() as seen:
        try:
            (payload,) = find_artefacts(file)
            import_artefact(payload, tmp_path / "bundle")
        except TorchReproError as error:
            refused = error
    assert time.perf_counter() - started < SECONDS
    assert refused is None or (refused.fact and refused.next_step)
    assert not [one for one in seen if not _is_ours(*one, tmp_path)]
    assert not (tmp_path / "was-here").exists()


def test_an_artefact_that_would_take_gigabytes_is_not_parsed() -> None:
    huge = artefact() + "# more\n" * (3 << 20)
    with pytest.raises(TorchReproError, match="would take gigabytes"):
        read_artefact(huge, "repro.py")


def test_a_trace_of_nonsense_is_no_artefact(tmp_path: Path) -> None:
    log = tmp_path / "dedicated_log_torch_trace_x.log"
    log.write_text(
        'V1118 17:05:43.1 1 a.py:1] {"artifact": {"name": "fx_graph_runnable"}, "frame_id": [}\n\tx\n'
    )
    with pytest.raises(TorchReproError, match="no artefact"):
        find_artefacts(log)
