"""Graphs from which programs are made: of small nets, captured once per hunt, and of bundles in corpora.

The nets are of plain torch and, where it is installed, of `transformers`: small configurations with random
weights, and nothing is downloaded.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from torchrepro.bundle.load import load_bundle
from torchrepro.bundle.provenance import is_own
from torchrepro.bundle.read import PARTIAL_SUFFIX
from torchrepro.corpus.index import Corpus, copy_members
from torchrepro.execute.compilers import compile_model
from torchrepro.execute.record_graphs import record_graphs
from torchrepro.judge.models import Phase
from torchrepro.nouns.errors import TorchReproError, in_a_line
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.nouns.sections import counted
from torchrepro.script.save_bundle import save_bundle
from torchrepro.state.fake_run import silent_torch
from torchrepro.torch_api import dynamo

Net = Callable[[], tuple[nn.Module, tuple[Any, ...]]]
"""Builds a model and its inputs."""
_OPS = 4
"""Smaller graphs are no sources."""


def collect_sources(_: Repro, payload: Mapping[str, Any], phase: Phase) -> list[str]:
    """Save the graphs that capture makes of the nets and the bundles of corpora; return what went wrong."""
    directory = Path(payload["directory"])
    partial_ = directory.with_name(f".{directory.name}{PARTIAL_SUFFIX}")
    shutil.rmtree(partial_, ignore_errors=True)
    partial_.mkdir()
    problems = _capture(partial_)
    problems += take_bundles(map(Path, payload["corpora"]), partial_, tuple(payload["trusted"]))
    partial_.rename(directory)
    return problems


def take_bundles(corpora: Iterable[Path], directory: Path, trusted: tuple[str, ...]) -> Iterator[str]:
    """Copy the user's own bundles out of corpora, and a stranger's that are trusted; yield what is left out.

    Programs are made of them and run without a sandbox, and those that fail are saved as the user's own.
    """
    strangers = 0
    for corpus in corpora:
        with Corpus(corpus) as opened:
            for entry in opened.entries():
                bundle, copy = opened.bundle(entry.id), directory / entry.id
                try:
                    if is_own(bundle):
                        copy_members(bundle, copy)
                    elif trusted:
                        save_bundle(replace(load_bundle(bundle, trusted=trusted), stranger=False), copy)
                    else:
                        strangers += 1
                except (TorchReproError, OSError) as exc:
                    yield f"{entry.name}: {in_a_line(exc)}"
    if strangers:
        yield (
            f"{counted(strangers, 'bundle')} of --corpus left out: not yours, and a hunt runs without the "
            "sandbox (--trust bundle allows it, in a new --out)"
        )


def _capture(directory: Path) -> list[str]:
    problems: list[str] = []
    for name, net in _nets():
        torch.manual_seed(0)
        try:
            with silent_torch():
                model, inputs = net()
                repros, notes = record_graphs(partial(_call, model, inputs), Compiler(), environ={})
        except Exception as exc:  # the net of another version of a library
            problems.append(f"{name}: {type(exc).__name__}: {exc}")
            continue
        finally:
            dynamo.reset()
        problems += [f"{name}: {note}" for note in notes]
        for number, repro in enumerate(each for each in repros if each.ops >= _OPS):
            with suppress(FileExistsError):
                save_bundle(repro, directory / f"{name}_{number}", script=False)
    return problems


def _call(model: nn.Module, inputs: tuple[Any, ...], backend: Callable[..., Any]) -> None:
    compile_model(Compiler(), model, backend=backend)(*inputs)


def _nets() -> Iterator[tuple[str, Net]]:
    yield from _PLAIN.items()
    if find_spec("transformers") is not None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        logging.getLogger("transformers").setLevel(logging.ERROR)
        for family, settings in _TRANSFORMERS.items():
            yield f"transformers_{family.lower()}", partial(_transformer, family, settings)


def _transformer(family: str, settings: Mapping[str, Any]) -> tuple[nn.Module, tuple[Any, ...]]:
    import transformers

    config = getattr(transformers, f"{family}Config")(**settings)
    model = getattr(transformers, f"{family}Model")(config).eval()
    given = torch.randn(2, 3, 32, 32) if family in _VISION else torch.arange(34).reshape(2, 17) % 97
    return model, (given,)


_TEXT: Mapping[str, Any] = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2}
_ATTENTION = {**_TEXT, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64}
_VISION: Mapping[str, Mapping[str, Any]] = {
    "ViT": {**_ATTENTION, "image_size": 32, "patch_size": 8},
    "ConvNext": {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
}
_TRANSFORMERS: Mapping[str, Mapping[str, Any]] = {
    "Bert": _ATTENTION,
    "GPT2": {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "Llama": {**_ATTENTION, "num_key_value_heads": 2},
    "Mixtral": {**_ATTENTION, "num_key_value_heads": 2, "num_local_experts": 4},
    "Mamba": {**_TEXT, "state_size": 4, "time_step_rank": 4},
    **_VISION,
}


def _convolutions() -> tuple[nn.Module, tuple[Any, ...]]:
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, stride=2, groups=2), nn.GroupNorm(4, 16), nn.SiLU()),
        *(nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(144, 17), nn.LogSoftmax(-1)),
    )
    return net, (torch.randn(2, 3, 33, 33),)


def _transformer_block() -> tuple[nn.Module, tuple[Any, ...]]:
    return nn.TransformerEncoderLayer(32, 4, 65, dropout=0.0, batch_first=True), (torch.randn(2, 17, 32),)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(9, 16), nn.Linear(16, 7)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        state = steps.new_zeros(steps.shape[1], 16)
        states = []
        for step in steps:
            state = self.cell(step, state)
            states.append(state)
        return functional.softmax(self.out(torch.stack(states)).cumsum(0), -1)


class _Experts(nn.Module):
    """A mixture of experts whose tokens are weighed densely."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4)
        self.up, self.down = nn.Parameter(torch.randn(4, 16, 31)), nn.Parameter(torch.randn(4, 31, 16))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(tokens).softmax(-1).topk(2, -1)
        mask = torch.zeros(*tokens.shape[:-1], 4).scatter(-1, chosen, weights / weights.sum(-1, keepdim=True))
        hidden = functional.gelu(torch.einsum("td,edh->eth", tokens, self.up))
        return torch.einsum("eth,ehd,te->td", hidden, self.down, mask)


class _Detection(nn.Module):
    """Boxes, masks and indices, in the integer and boolean dtypes that detectors and tokenisers use."""

    def forward(
        self, boxes: torch.Tensor, scores: torch.Tensor, image: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        corners = torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)
        low = torch.maximum(corners[:, None, :2], corners[None, :, :2])
        high = torch.minimum(corners[:, None, 2:], corners[None, :, 2:])
        overlap = (high - low).clamp(min=0).prod(-1)
        area = (corners[:, 2:] - corners[:, :2]).prod(-1)
        union = area[:, None] + area[None] - overlap
        order = scores.argsort(descending=True, stable=True)
        dark = image.amin((-1, -2)), image.to(torch.int32).sum(-1), (image > 127).any(-1)
        resized = functional.interpolate(image[None].float(), scale_factor=1.5, mode="bilinear")
        return overlap / union.clamp(min=1e-6), corners[order], *dark, resized.round().to(torch.uint8)


_PLAIN: Mapping[str, Net] = {
    "convolutions": _convolutions,
    "transformer_block": _transformer_block,
    "recurrent": lambda: (_Recurrent(), (torch.randn(5, 3, 9),)),
    "experts": lambda: (_Experts(), (torch.randn(17, 16),)),
    "detection": lambda: (
        _Detection(),
        (torch.rand(33, 4), torch.rand(33), torch.randint(0, 256, (3, 17, 20), dtype=torch.uint8)),
    ),
}
