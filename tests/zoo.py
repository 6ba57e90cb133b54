"""Small models of many kinds, `MODELS[name]() -> (model, args, kwargs)`: random weights, nothing downloaded.

Tensors are tiny, so that a test's time is the compiler's. Each call builds anew, seeded, on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


class Cnn(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = functional.relu(x + self.block(x))
        return self.head(functional.max_pool2d(x, 2).mean((2, 3)))


class DoubleConvolution(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.Conv2d(outputs, outputs, 3, padding=1),
        )
        self.norm = nn.GroupNorm(2, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.silu(self.norm(self.second(functional.silu(self.first(x)))))


class UNet(nn.Module):
    def __init__(self, width: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.enter = DoubleConvolution(3, width)
        self.down = nn.ModuleList(DoubleConvolution(width * 2**i, width * 2 ** (i + 1)) for i in range(depth))
        self.up = nn.ModuleList(
            DoubleConvolution(width * 3 * 2**i, width * 2**i) for i in reversed(range(depth))
        )
        self.leave = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(functional.max_pool2d(x, 2))
        for up in self.up:
            x = up(torch.cat([functional.interpolate(x, scale_factor=2.0, mode="nearest"), skips.pop()], 1))
        return torch.tanh(self.leave(x))


class UnrolledLstm(nn.Module):
    """An LSTM as a loop in Python: many small nodes."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * width, 4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, steps, width = x.shape
        hidden, cell = x.new_zeros(batch, width), x.new_zeros(batch, width)
        outputs = []
        for step in range(steps):
            i, f, g, o = self.gates(torch.cat([x[:, step], hidden], 1)).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
            outputs.append(hidden)
        return torch.stack(outputs, 1)


class Mixer(nn.Module):
    def __init__(self, patches: int = 8, width: int = 16) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.tokens = nn.Sequential(
            nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches)
        )
        self.channels = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.norms[1](x))
        return self.head(x.mean(1))


class Transformer(nn.Module):
    def __init__(self, width: int = 16, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "feed": nn.Sequential(
                        nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
                    ),
                }
            )
            for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        for layer in self.layers:
            q, k, v = (
                layer["qkv"](layer["norm"](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            )
            attention = torch.softmax(q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5, -1)
            x = x + layer["out"]((attention @ v).transpose(1, 2).reshape(batch, length, width))
            x = x + layer["feed"](x)
        return x


class IntegerModel(nn.Module):
    """Quantisation by hand: integer matrix product, scales, clamping."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 128, (width, width), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(width) / 64 + 0.01)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        step = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
        quantised = torch.round(x / step).clamp(-128, 127).to(torch.int8)
        product = quantised.to(torch.int32) @ self.weight.to(torch.int32).t()
        packed = (product >> 4) & 0xFF
        return product.to(x.dtype) * step * self.scale, packed.to(torch.uint8)


class InPlaceState(nn.Module):
    """Mutates a buffer and its input."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, width))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, position: int = 1) -> torch.Tensor:
        self.cache[position] = x.mean(0)
        self.steps += 1
        x.mul_(0.5)
        return (x + self.cache.sum(0)).relu_() * self.steps


def _sequence(model: nn.Module, *shape: int) -> Built:
    return model, (torch.randn(*shape),), {}


def _tokens(count: int = 8) -> torch.Tensor:
    return torch.randint(0, 64, (2, count))


def _bert() -> Built:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        attn_implementation="eager",
    )
    return BertModel(config).eval(), (), {"input_ids": _tokens()}


def _gpt2() -> Built:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=64,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=32,
        attn_implementation="eager",
        bos_token_id=1,
        eos_token_id=2,
    )
    return GPT2LMHeadModel(config).eval(), (), {"input_ids": _tokens(), "use_cache": False}


def _llama() -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    return LlamaForCausalLM(config).eval(), (), {"input_ids": _tokens(), "use_cache": False}


def _t5() -> Built:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=64,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
        use_cache=False,
    )
    inputs = {"input_ids": _tokens(), "decoder_input_ids": _tokens(4), "use_cache": False}
    return T5ForConditionalGeneration(config).eval(), (), inputs


def _vit() -> Built:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=8,
        attn_implementation="eager",
    )
    return ViTModel(config).eval(), (), {"pixel_values": torch.randn(2, 3, 16, 16)}


def _seeded(build: Callable[[], Built]) -> Callable[[], Built]:
    def built() -> Built:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return build()

    return built


PLAIN: Mapping[str, Callable[[], Built]] = {
    "cnn": _seeded(lambda: _sequence(Cnn(), 2, 3, 16, 16)),
    "unet": _seeded(lambda: _sequence(UNet(), 1, 3, 16, 16)),
    "lstm_unrolled": _seeded(lambda: _sequence(UnrolledLstm(), 2, 5, 8)),
    "lstm": _seeded(lambda: _sequence(nn.LSTM(8, 8, batch_first=True), 2, 5, 8)),
    "mixer": _seeded(lambda: _sequence(Mixer(), 2, 8, 16)),
    "transformer": _seeded(lambda: _sequence(Transformer(), 2, 6, 16)),
    "integer": _seeded(lambda: _sequence(IntegerModel(), 3, 16)),
    "in_place_state": _seeded(lambda: _sequence(InPlaceState(), 3, 8)),
}
"""Models that need torch alone."""

HUGGING_FACE: Mapping[str, Callable[[], Built]] = {
    "bert": _seeded(_bert),
    "gpt2": _seeded(_gpt2),
    "llama": _seeded(_llama),
    "t5": _seeded(_t5),
    "vit": _seeded(_vit),
}
"""Models built from small configurations of `transformers`."""

MODELS: Mapping[str, Callable[[], Built]] = {**PLAIN, **HUGGING_FACE}
