"""What is printed when torchrepro itself fails fits on a screen, however long the reason is."""

from __future__ import annotations

import json

import pytest
import typer

from torchrepro.cli.options import CANNOT_BE_TESTED, failures_as_lines
from torchrepro.nouns.errors import HarnessError


@pytest.mark.parametrize("as_json", [False, True])
def test_a_long_reason_is_cut_and_says_where_the_rest_is(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(typer.Exit) as left,
        failures_as_lines(as_json=as_json, show_traceback=False),
    ):
        raise HarnessError(
            "torchrepro itself failed (" + "error: no such thing; " * 5000 + ")\nTraceback ..."
        )
    assert left.value.exit_code == CANNOT_BE_TESTED
    shown = capsys.readouterr()
    assert len(shown.err) < 500
    assert "--traceback" in shown.err
    if as_json:
        assert json.loads(shown.out)["error"].startswith("torchrepro itself failed")
