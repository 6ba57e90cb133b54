"""The models of `transformers` that are captured: small configurations, random weights, nothing downloaded.

Widths are tiny, so that the time is that of capture. Everything else is the default of the library: the kind
of attention, the cache of a decoder, the type of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import nn

TEXT = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ENCODER = {**TEXT, "intermediate_size": 64, "max_position_embeddings": 64}
DECODER = {**ENCODER, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
SPEECH = {
    **ENCODER,
    "conv_dim": (16, 16),
    "conv_kernel": (8, 4),
    "conv_stride": (4, 2),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}

Inputs = dict[str, torch.Tensor]


def tokens(length: int = 12) -> Inputs:
    mask = torch.ones(2, length, dtype=torch.long)
    return {"input_ids": torch.randint(3, 100, (2, length)), "attention_mask": mask}


def only_tokens() -> Inputs:
    return {"input_ids": torch.randint(3, 100, (2, 12))}


def tokens_of_both_sides() -> Inputs:
    return {**tokens(), "decoder_input_ids": torch.randint(3, 100, (2, 7))}


def picture() -> Inputs:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def sound() -> Inputs:
    return {"input_values": torch.randn(2, 400)}


def spectrogram() -> Inputs:
    return {"input_features": torch.randn(1, 8, 32), "decoder_input_ids": torch.randint(3, 100, (1, 5))}


def series() -> Inputs:
    return {"past_values": torch.randn(2, 32, 3)}


def tokens_and_picture() -> Inputs:
    return {**tokens(), **picture()}


@dataclass(frozen=True, slots=True)
class Model:
    """A row: which class, with which settings, called with what."""

    family: str
    """Prefix of the library's classes: `Bert` for `BertConfig`."""
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: Callable[[], Inputs] = tokens
    head: str = "Model"

    @property
    def name(self) -> str:
        return f"{self.family}{self.head}"

    def build(self) -> nn.Module:
        """Always the same weights."""
        torch.manual_seed(0)
        config = getattr(transformers, f"{self.family}Config")(**self.settings)
        model: nn.Module = getattr(transformers, self.name)(config)
        return model.eval()

    def call(self, seed: int) -> Inputs:
        torch.manual_seed(seed)
        return self.inputs()


BART = {
    "vocab_size": 100,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
}
T5 = {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
STAGES = {"depths": [1, 1], "hidden_sizes": [8, 16], "embedding_size": 8}
GROUPED = {**DECODER, "head_dim": 8}
EXPERTS = {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2}

MODELS: tuple[Model, ...] = (
    Model("Bert", "encoder", ENCODER),
    Model("Roberta", "encoder", {**ENCODER, "pad_token_id": 1}),
    Model(
        "DistilBert", "encoder", {"vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
    ),
    Model("Albert", "encoder", {**ENCODER, "embedding_size": 16}),
    Model("Electra", "encoder", {**ENCODER, "embedding_size": 16}),
    Model("DebertaV2", "encoder", {**ENCODER, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    Model("MPNet", "encoder", ENCODER),
    Model("FNet", "encoder", ENCODER, only_tokens),
    Model("ModernBert", "encoder", {**ENCODER, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}),
    Model("XLNet", "encoder", {"vocab_size": 100, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}),
    Model("Bert", "encoder, loss", ENCODER, head="ForMaskedLM"),
    Model("GPT2", "decoder", {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    Model(
        "GPTNeo",
        "decoder",
        {**TEXT, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    ),
    Model("GPTNeoX", "decoder", ENCODER),
    Model(
        "OPT", "decoder", {**TEXT, "ffn_dim": 64, "max_position_embeddings": 64, "word_embed_proj_dim": 32}
    ),
    Model("Bloom", "decoder", {"vocab_size": 100, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    Model("Llama", "decoder", DECODER, head="ForCausalLM"),
    Model("Mistral", "decoder", {**DECODER, "sliding_window": 8}),
    Model("Qwen2", "decoder", DECODER),
    Model("Qwen3", "decoder", GROUPED),
    Model("Gemma2", "decoder", GROUPED),
    Model("Phi", "decoder", DECODER),
    Model("Phi3", "decoder", DECODER),
    Model("Falcon", "decoder", TEXT),
    Model("StableLm", "decoder", DECODER),
    Model("Olmo2", "decoder", DECODER),
    Model("Mixtral", "mixture of experts", EXPERTS),
    Model(
        "Qwen2Moe",
        "mixture of experts",
        {
            **DECODER,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
    ),
    Model("T5", "encoder and decoder", T5, tokens_of_both_sides),
    Model("Bart", "encoder and decoder", BART, tokens_of_both_sides),
    Model(
        "Marian",
        "encoder and decoder",
        {**BART, "pad_token_id": 0, "decoder_start_token_id": 0},
        tokens_of_both_sides,
    ),
    Model("Mamba", "state space", {**TEXT, "state_size": 4}, only_tokens),
    Model(
        "Mamba2",
        "state space",
        {**TEXT, "state_size": 4, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 4},
        only_tokens,
    ),
    Model("ViT", "vision", VISION, picture),
    Model("DeiT", "vision", VISION, picture),
    Model("Beit", "vision", VISION, picture),
    Model("Dinov2", "vision", VISION, picture),
    Model(
        "Swin",
        "vision",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 8,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
        },
        picture,
    ),
    Model("ConvNext", "vision", {"depths": [1, 1], "hidden_sizes": [8, 16], "num_stages": 2}, picture),
    Model("ResNet", "vision", STAGES, picture),
    Model("RegNet", "vision", {**STAGES, "groups_width": 4}, picture),
    Model(
        "Segformer",
        "vision",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [3, 3],
            "strides": [2, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
        },
        picture,
    ),
    Model("MobileNetV2", "vision", {"depth_multiplier": 0.35}, picture),
    Model(
        "CLIP",
        "text and vision",
        {"text_config": ENCODER, "vision_config": VISION, "projection_dim": 16},
        tokens_and_picture,
    ),
    Model("Wav2Vec2", "audio", SPEECH, sound),
    Model("Hubert", "audio", SPEECH, sound),
    Model(
        "Whisper",
        "audio",
        {
            **BART,
            "num_mel_bins": 8,
            "max_source_positions": 16,
            "max_target_positions": 16,
            "pad_token_id": 0,
            "decoder_start_token_id": 1,
        },
        spectrogram,
    ),
    Model(
        "PatchTST",
        "time series",
        {
            "num_input_channels": 3,
            "context_length": 32,
            "patch_length": 8,
            "patch_stride": 8,
            "d_model": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 64,
        },
        series,
    ),
)


def chosen(names: Sequence[str]) -> list[Model]:
    """Those that are named, in the order of the table; all where none is."""
    unknown = set(names) - {model.name for model in MODELS}
    if unknown:
        raise SystemExit(
            f"no model {', '.join(sorted(unknown))}; there are {', '.join(m.name for m in MODELS)}"
        )
    return [model for model in MODELS if not names or model.name in names]
