from __future__ import annotations

from pathlib import Path

import pytest

from torchrepro.bisect import bisect as module
from torchrepro.bisect.bisected import Bisected, Changed, Row, State
from torchrepro.bisect.series import Wanted


def test_what_is_written_next_to_a_strangers_bundle_follows_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHREPRO_CACHE_DIR", str(tmp_path / "cache"))
    script, precious = tmp_path / "script.py", tmp_path / "precious"
    script.write_text("")
    precious.write_text("years of work")
    planted = tmp_path / "script.py.bisected"
    planted.mkdir()
    for name in ("change-1.diff", "result.json"):
        (planted / name).symlink_to(precious)
    change = Changed(Row("N=1", State.PASSES), Row("N=2", State.SAME), (), True, "- a\n+ b", "")
    found = Bisected(str(script), "N", (), (change,), "", "", str(planted), ())
    monkeypatch.setattr(module._Run, "until_known", lambda run, executor: "")
    monkeypatch.setattr(module._Run, "bisected", lambda run, stopped, directory: found)
    module.bisect(script, Wanted(environ=("N=1,2",)))
    assert precious.read_text() == "years of work"
    assert (planted / "change-1.diff").read_text() == "- a\n+ b\n"
