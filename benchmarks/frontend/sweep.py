"""Every kind of model that `transformers` has, shrunk by one rule for all, captured and compared with Python.

    python -m benchmarks.frontend.sweep [MODEL ...]

By hand, as it takes an hour: each model in a process of its own, two calls with other values. A model that
the rule does not shrink to something that Python can call is skipped and counted.
"""

from __future__ import annotations

import inspect
import logging
import multiprocessing
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto import configuration_auto, modeling_auto

from benchmarks.frontend.captured import Captured, captured

SECONDS = 180
CONFIGURATIONS: dict[str, str] = vars(configuration_auto)["CONFIG_MAPPING_NAMES"]
MODELS: dict[str, Any] = vars(modeling_auto)["MODEL_MAPPING_NAMES"]
"""Names of classes by the kind of model."""
SMALL = (
    (r".*token_(id|index)", 99),
    (r".*vocab.*", 100),
    (r".*(key_value|kv)_heads", 2),
    (r".*heads|n_head|.*_head", 4),
    (r".*layers|n_layer|depth", 2),
    (r"head_dim|d_kv|.*_head_dim", 8),
    (r".*(intermediate|ffn).*|d_ff|mlp_dim|d_inner", 64),
    (r".*position.*|n_ctx|max_seq_len", 128),
    (r".*experts_per.*", 2),
    (r"(?!.*shared).*experts", 8),
    (r"n_group|topk_group", 1),
    (r"image_size", 32),
    (r"patch_size", 8),
    (r".*lora_rank|num_mel_bins", 16),
    (r".*hidden_(size|dim)|d_model|n_embd|dim|embed_dim|emb_dim|projection_dim|embedding_(size|dim)", 32),
)
"""Of a setting that has such a name: no more than this."""


def settings(kind: Any) -> dict[str, Any]:
    """Arguments of a class of configurations, and of those within it."""
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        limit = next((limit for pattern, limit in SMALL if re.fullmatch(pattern, name)), None)
        default = parameter.default
        if limit is not None and isinstance(default, int) and not isinstance(default, bool):
            found[name] = min(default, limit)
        elif name == "depths" and isinstance(default, list | tuple):
            found[name] = [1] * len(default)
    for name in getattr(kind, "sub_configs", None) or {}:
        inner: Any = type(getattr(kind(), name, None))
        if hasattr(inner, "model_type"):
            found[name] = {**settings(inner), "model_type": inner.model_type}
    return found


def inputs_of(model: nn.Module) -> Iterator[Callable[[], dict[str, torch.Tensor]]]:
    """What the model could be called with, by the names of its arguments: the most there is comes first."""
    names = inspect.signature(model.forward).parameters
    size = getattr(model.config, "image_size", None)
    side = size if isinstance(size, int) else 32
    kinds: dict[str, Callable[[], torch.Tensor]] = {
        "input_ids": lambda: torch.randint(3, 90, (2, 12)),
        "decoder_input_ids": lambda: torch.randint(3, 90, (2, 7)),
        "pixel_values": lambda: torch.randn(2, 3, side, side),
        "input_values": lambda: torch.randn(2, 4000),
        "input_features": lambda: torch.randn(2, 64, 16),
        "past_values": lambda: torch.randn(2, 32, 1),
    }
    known = [name for name in kinds if name in names]
    for chosen in (known, *([name] for name in known)):
        if chosen:
            yield partial(_made, {name: kinds[name] for name in chosen})


def _made(makers: dict[str, Callable[[], torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: make() for name, make in makers.items()}


def compared(name: str, family: str) -> Captured | str:
    """What capture made of a model; why there is nothing to compare otherwise."""
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)

    def build() -> Any:
        torch.manual_seed(0)
        kind = getattr(transformers, CONFIGURATIONS[family])
        return getattr(transformers, name)(kind(**settings(kind))).eval()

    def call(make: Callable[[], dict[str, torch.Tensor]], seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        return make()

    why = "no inputs are known"
    try:
        for make in inputs_of(build()):
            try:
                build()(**call(make, 1))
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            else:
                return captured("traced", build, [partial(call, make, seed) for seed in (1, 2)])
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    return why


def main() -> None:
    skipped = 0
    for family, names in MODELS.items():
        name = names if isinstance(names, str) else names[0]
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        with multiprocessing.get_context("fork").Pool(1) as pool:
            try:
                found = pool.apply_async(compared, (name, family)).get(SECONDS)
            except multiprocessing.TimeoutError:
                found = f"nothing after {SECONDS} s"
        if isinstance(found, str):
            skipped += 1
            print(f"{name:45} skipped: {found[:100]!r}", flush=True)
        else:
            again = ", captured again" if found.again else ""
            breaks = "; ".join(dict.fromkeys(found.breaks))[:200]
            print(
                f"{name:45} {found.agrees} {found.graphs} graphs {found.seconds:.1f} s{again} {breaks}",
                flush=True,
            )
    print(f"{skipped} skipped")


if __name__ == "__main__":
    main()
