"""Hostile artefacts under an import in this process: no command, no connection, no pickle, no other file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from artefact_text import artefact

from tests.bundle.test_hostile_bundles import audited
from tests.interchange.hostile_artefacts import HOSTILE, plant_storage
from torchrepro.interchange.find_artefacts import Payload, find_artefacts
from torchrepro.interchange.import_artefact import import_artefact
from torchrepro.interchange.read_artefact import read_artefact
from torchrepro.nouns.errors import TorchReproError

SECONDS = 10.0


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


def test_a_trace_whose_line_could_begin_anywhere_is_read_at_once(tmp_path: Path) -> None:
    log = tmp_path / "dedicated_log_torch_trace_x.log"
    log.write_text("V1118 " + "] {" * 60_000 + "\n\tx\n")
    started = time.perf_counter()
    with pytest.raises(TorchReproError, match="no artefact"):
        find_artefacts(log)
    assert time.perf_counter() - started < SECONDS / 2
