"""How a script ends, as a signature."""

from __future__ import annotations

import pytest

from torchrepro.bisect.scripts import signature_of

TRACEBACK = """\
warming up
Traceback (most recent call last):
  File "a.py", line 3, in <module>
    inner()
ValueError: first

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 5, in <module>
    f(x)
torch._inductor.exc.InductorError: KeyError: 'buf7'
more lines of the message

Set TORCHDYNAMO_VERBOSE=1 for more
"""


@pytest.mark.parametrize(
    ("code", "output", "expected"),
    [
        (1, TRACEBACK, "run_error | InductorError | KeyError: 'buf<n>'"),
        (1, TRACEBACK.replace("buf7", "buf9"), "run_error | InductorError | KeyError: 'buf<n>'"),
        (
            1,
            'Traceback (most recent call last):\n  File "a", line 1\nAssertionError\n',
            "run_error | AssertionError",
        ),
        (-11, "", "crash | SIGSEGV"),
        (3, "wrong numbers\n", "crash | exit 3"),
        (None, "", "hang"),
        (0, TRACEBACK, "None"),
    ],
)
def test_the_last_exception_the_signal_or_the_exit_code_tells(code: int | None, output: str, expected: str):
    signature, said = signature_of(code, output)
    assert str(signature) == expected
    assert said
