"""Write artefacts as torch does, with a part replaced."""

from __future__ import annotations

from pathlib import Path

SAMPLES = Path(__file__).resolve().parent.parent / "cases" / "artefacts"

_TEXT = """
import os
import torch
from torch import tensor, device
from math import inf
{top}
from torch.nn import *
class Repro(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
{state}
    def forward(self, {parameters}):
{body}

{load}
load_args._version = 0
mod = Repro()
if __name__ == '__main__':
    from torch._dynamo.repro.{place} import run_repro
    with torch.no_grad():
        run_repro(mod, load_args, accuracy={accuracy}, save_dir={save_dir!r}, tracing_mode='real')
"""
ONE_TENSOR = """\
def load_args(reader):
    buf0 = reader.storage(None, 12)
    reader.tensor(buf0, (3,), is_leaf=True)  # x"""


def artefact(
    *body: str,
    top: str = "",
    state: str = "",
    parameters: str = "x",
    load: str = ONE_TENSOR,
    place: str = "after_aot",
    accuracy: object = False,
    save_dir: str | None = None,
) -> str:
    """Return an artefact whose graph has these lines."""
    lines = body or ("sin = torch.ops.aten.sin.default(x);  x = None", "return (sin,)")
    return _TEXT.format(
        top=top,
        state="".join(f"        {line}\n" for line in state.splitlines()),
        parameters=parameters,
        body="\n".join(f"        {line}" for line in lines),
        load=load,
        place=place,
        accuracy=accuracy,
        save_dir=save_dir,
    )
