"""Where a user keeps things on their machine is nobody's business, in no format."""

from __future__ import annotations

from pathlib import Path

import pytest
from findings import RAISED, failing_bundle, located_in, minified_beside

from torchrepro.report.collect import collect
from torchrepro.report.formats import Format, rendered
from torchrepro.report.privacy import script_without_paths, shareable_environ, without_paths


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('File "/home/ada lovelace/train.py", line 3', 'File ".../train.py", line 3'),
        ("/usr/lib/python3.11/site-packages/torch/_inductor/a.py:1", "torch/_inductor/a.py:1"),
        ("/tmp/torchinductor_ada/xy/cxy.cpp:7:1: error: no", ".../cxy.cpp:7:1: error: no"),
        (r"C:\Users\ada\model.py is missing", ".../model.py is missing"),
        ("~/private/x.py", ".../x.py"),
        ("file:///home/ada/x.html", ".../x.html"),
        (f"{Path.home()}/a b/x.py", ".../a b/x.py"),
        ("see https://pytorch.org/docs/a/b", "see https://pytorch.org/docs/a/b"),
        ("aten/src/ATen and 3/4 of all", "aten/src/ATen and 3/4 of all"),
    ],
)
def test_a_path_is_cut_down_to_what_helps(text: str, shown: str) -> None:
    assert without_paths(text) == shown


def test_a_division_in_a_script_stays_one() -> None:
    script = 'load("/home/ada/lib.so")\ny = a /b/c\n'
    assert script_without_paths(script) == 'load(".../lib.so")\ny = a /b/c\n'


def test_of_the_environment_only_switches_are_told() -> None:
    environ = {"TORCH_LOGS": "dynamo", "HOME": "/home/ada", "CXX": "/opt/g++", "TRITON_CACHE_DIR": "/x/y"}
    environ |= {"TORCHINDUCTOR_URL": "x", "TORCHINDUCTOR_A": "/home/ada/x", "OMP_NUM_THREADS": "2"}
    assert shareable_environ(environ) == {"TORCH_LOGS": "dynamo", "OMP_NUM_THREADS": "2"}


@pytest.mark.parametrize("format_", list(Format))
def test_no_format_tells_where_things_are(format_: Format, tmp_path: Path) -> None:
    bundle = failing_bundle(tmp_path / "ada" / "failing", RAISED)
    minified_beside(bundle)
    located_in(bundle)
    shown = rendered(collect(bundle), format_)
    assert "/home/ada" not in shown
    assert str(tmp_path) not in shown
    assert "train.py" in shown
