"""Run a file of `tests/cases/real` as a user's own program would: build, compile, call, backward if asked.

    python real_program.py case_191499.py

Nothing is compared here: that is for the tool that watches the program.
"""

import os
import sys
from importlib import import_module

import torch
from torch.utils import _pytree as pytree


def main(path: str) -> None:
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    case = import_module(os.path.splitext(os.path.basename(path))[0])
    model, inputs = case.build()
    compiled = torch.compile(model, **getattr(case, "COMPILE", {}))
    torch.manual_seed(0)
    with torch.set_grad_enabled(not getattr(case, "NO_GRAD", False)):
        call = getattr(case, "call", None)
        result = call(compiled, inputs) if call else compiled(*inputs)
    if getattr(case, "GRAD", False):
        torch.stack(
            [leaf.sum() for leaf in pytree.tree_leaves(result) if leaf.requires_grad]
        ).sum().backward()


if __name__ == "__main__":
    main(sys.argv[1])
