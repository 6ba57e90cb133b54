"""A corpus of hostile artefacts of PyTorch's tools: each tries to run a command or to stop the reader.

The command creates `was-here`; `plant_storage` writes the pickle that one of them names.
"""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

from tests.interchange.artefact_text import ONE_TENSOR, artefact

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
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.canary}",)


def plant_storage(directory: Path, canary: Path = Path("was-here")) -> None:
    """Write what `torch.save` writes, with a pickle that runs a command."""
    (directory / "storages").mkdir(parents=True)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps(_Bomb(canary)))
        archive.writestr("a/data/0", b"\0" * 12)
    (directory / "storages" / _DIGEST).write_bytes(content.getvalue())
