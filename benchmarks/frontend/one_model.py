"""Capture one model in both ways and print what came of it, in a process of its own: a crash costs one row.

python -m benchmarks.frontend.one_model BertModel
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from dataclasses import asdict
from functools import partial

import torch

from benchmarks.frontend.captured import captured
from benchmarks.frontend.models import chosen

WARM = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
"""Captured first, so that neither way pays for importing itself."""


def main() -> None:
    (model,) = chosen([sys.argv[1]])
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    calls = [partial(model.call, seed) for seed in (1, 2)]
    found = {}
    for way in ("traced", "dynamo"):
        captured(way, lambda: WARM, [lambda: {"input": torch.ones(2, 2)}])
        found[way] = asdict(captured(way, model.build, calls))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
