# SPDX-License-Identifier: Apache-2.0
"""The sizes that can be made, and the `config.json` of each."""

from collections.abc import Mapping
from typing import Any, NamedTuple

# Stored at the end of the vocabulary, in this order.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)


class Size(NamedTuple):
    """A size: one line about it, and what it sets in the text model's configuration."""

    about: str
    fields: Mapping[str, Any]


def _fields(hidden, layers, heads, head_dim, gdn_heads, gdn_dim, experts, top_k, width, vocab):
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "linear_num_key_heads": gdn_heads,
        "linear_num_value_heads": 2 * gdn_heads,
        "linear_key_head_dim": gdn_dim,
        "linear_value_head_dim": gdn_dim,
        "num_experts": experts,
        "num_experts_per_tok": top_k,
        "moe_intermediate_size": width,
        "shared_expert_intermediate_size": width,
    }


SIZES: Mapping[str, Size] = {
    "tiny": Size(
        "4 layers, hidden 64, 8 experts top 2, vocabulary 512: 0.4 M parameters",
        _fields(64, 4, 4, 32, 2, 32, 8, 2, 32, 512),
    ),
    "small": Size(
        "8 layers, hidden 256, 16 experts top 4, vocabulary 2,048: 10 M parameters",
        _fields(256, 8, 8, 32, 4, 32, 16, 4, 64, 2048),
    ),
    "medium": Size(
        "12 layers, hidden 512, 32 experts top 4, vocabulary 8,192: 208 M parameters",
        _fields(512, 12, 8, 128, 8, 128, 32, 4, 256, 8192),
    ),
    "large": Size(
        "24 layers, hidden 1,024, 64 experts top 8, vocabulary 32,768: 1.5 G parameters",
        _fields(1024, 24, 16, 256, 8, 128, 64, 8, 256, 32768),
    ),
}

# The same for all sizes; any of these may be overridden as well.
_COMMON: Mapping[str, Any] = {
    "max_position_embeddings": 8192,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_output_gate": True,
    "initializer_range": 0.02,
    "rope_theta": 10_000_000.0,
    "partial_rotary_factor": 0.25,
    "mrope_section": None,  # None: thirds of the rotary frequencies
    "layer_types": None,  # None: full attention in every full_attention_interval-th layer
}


def text_fields(size: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The text model's configuration; raises ValueError for an unknown size or field."""
    if size not in SIZES:
        raise ValueError(f"size {size!r} is unknown; choose one of {', '.join(SIZES)}")
    fields = {**_COMMON, **SIZES[size].fields}
    for name in overrides:
        if name not in fields:
            raise ValueError(f"field {name!r} cannot be set; choose one of {', '.join(fields)}")
    fields |= overrides
    interval = fields.pop("full_attention_interval")
    if fields["layer_types"] is None:
        fields["layer_types"] = [
            "linear_attention" if layer % interval else "full_attention"
            for layer in range(1, fields["num_hidden_layers"] + 1)
        ]
    factor, sections = fields.pop("partial_rotary_factor"), fields.pop("mrope_section")
    if sections is None:
        frequencies = int(fields["head_dim"] * factor) // 2
        sections = [(frequencies + 2 - axis) // 3 for axis in range(3)]
    fields["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": fields.pop("rope_theta"),
        "partial_rotary_factor": factor,
        "mrope_section": sections,
        "mrope_interleaved": True,
    }
    return fields


def hf_config(
    fields: Mapping[str, Any], *, layout: str, dtype: str, tie_word_embeddings: bool
) -> dict[str, Any]:
    """The contents of config.json around the text model's fields."""
    end_of_text, _, end_of_turn, *vision_tokens = special_token_ids(fields["vocab_size"])
    text = {
        "model_type": "qwen3_5_moe_text",
        "dtype": dtype,
        **fields,
        "bos_token_id": None,
        "eos_token_id": end_of_turn,
        "pad_token_id": end_of_text,
        "tie_word_embeddings": tie_word_embeddings,
        "use_cache": True,
    }
    if layout == "flat":
        return {"architectures": ["Qwen3_5MoeForCausalLM"], **text}
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "dtype": dtype,
        "text_config": {**text, "mtp_num_hidden_layers": 1},
        "vision_config": vision_fields(fields["hidden_size"]),
        "tie_word_embeddings": tie_word_embeddings,
        **dict(zip(names, vision_tokens, strict=True)),
    }


def special_token_ids(vocab_size: int) -> range:
    """The ids of SPECIAL_TOKENS."""
    return range(vocab_size - len(SPECIAL_TOKENS), vocab_size)


def vision_fields(hidden_size: int) -> dict[str, Any]:
    """A vision tower as small as can be: it is there to be skipped."""
    return {
        "model_type": "qwen3_5_moe_vision",
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_heads": 2,
        "in_channels": 3,
        "patch_size": 2,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 4,
        "out_hidden_size": hidden_size,
        "hidden_act": "gelu_pytorch_tanh",
        "initializer_range": 0.02,
    }
