# SPDX-License-Identifier: Apache-2.0
"""The dimensions of a Qwen 3.5 MoE text model, read from a Hugging Face `config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LINEAR_ATTENTION = "linear_attention"
FULL_ATTENTION = "full_attention"

# `model_type` of the two published layouts: the text model alone, and the text model nested in a
# vision-language model under `text_config`.
FLAT_MODEL_TYPE = "qwen3_5_moe_text"
NESTED_MODEL_TYPE = "qwen3_5_moe"

# Variants of the architecture that the model does not implement: the field may be absent, or have
# this value.
_FIXED_FIELDS: Mapping[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attn_output_gate": True,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
}

# The value that transformers takes for a rope parameter that the file does not give.
_ROPE_DEFAULTS: Mapping[str, Any] = {
    "rope_type": "default",
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.25,
    "mrope_section": [11, 11, 10],
    "mrope_interleaved": True,
}


@dataclass(frozen=True)
class ModelConfig:
    """Every dimension of the text model; sizes count elements, not bytes.

    `layer_types[i]` says what mixes tokens in layer i: "linear_attention" (Gated DeltaNet, GDN) or
    "full_attention" (gated softmax attention). Every layer has a mixture of experts after it.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    layer_types: tuple[str, ...]
    # Full attention: query heads share KV heads in groups; the first rotary_dim of head_dim rotate.
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    mrope_section: tuple[int, int, int]
    # Gated DeltaNet: value heads share key heads in groups; the causal convolution sees
    # linear_conv_width tokens, the current one included.
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_width: int
    # Mixture of experts.
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    max_position_embeddings: int

    def __post_init__(self) -> None:
        _check_layer_types(self.layer_types, self.num_layers)
        for name in ("hidden_size", "vocab_size", "linear_conv_width", "max_position_embeddings"):
            _check(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for heads, group in (
            ("num_attention_heads", "num_kv_heads"),
            ("linear_num_value_heads", "linear_num_key_heads"),
        ):
            count, divisor = getattr(self, heads), getattr(self, group)
            multiple = divisor >= 1 and count >= 1 and count % divisor == 0
            _check(multiple, heads, count, f"a multiple of {group} ({divisor})")
        rotary = f"an even number of at least 2 and at most head_dim ({self.head_dim})"
        fits = 2 <= self.rotary_dim <= self.head_dim and self.rotary_dim % 2 == 0
        _check(fits, "rotary_dim (head_dim x partial_rotary_factor)", self.rotary_dim, rotary)
        sections = len(self.mrope_section) == 3 and min(self.mrope_section) >= 0
        _check(sections, "mrope_section", self.mrope_section, "three non-negative integers")
        top_k = 1 <= self.num_experts_per_tok <= self.num_experts
        limit = f"between 1 and num_experts ({self.num_experts})"
        _check(top_k, "num_experts_per_tok", self.num_experts_per_tok, limit)

    @property
    def num_gdn_layers(self) -> int:
        return self.layer_types.count(LINEAR_ATTENTION)

    @property
    def num_attention_layers(self) -> int:
        return self.layer_types.count(FULL_ATTENTION)

    @property
    def key_channels(self) -> int:
        """GDN key heads x key head size; queries have as many."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_channels(self) -> int:
        """GDN value heads x value head size."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the causal convolution: queries, keys and values side by side."""
        return 2 * self.key_channels + self.value_channels

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "ModelConfig":
        """The model described by a `config.json`, flat or with a nested `text_config`.

        Raises ValueError, naming the field and its value, when a field is missing, malformed, or
        asks for a variant that is not implemented.
        """
        text = text_config(config)
        for name, supported in _FIXED_FIELDS.items():
            value = text.get(name, supported)
            only = f"{supported!r} (no other value is supported)"
            _check(value == supported, name, value, only)
        num_layers = _integer(text, "num_hidden_layers")
        head_dim = _integer(text, "head_dim")
        rope = _rope_parameters(text)
        return cls(
            vocab_size=_integer(text, "vocab_size"),
            hidden_size=_integer(text, "hidden_size"),
            num_layers=num_layers,
            layer_types=_layer_types(text, num_layers),
            num_attention_heads=_integer(text, "num_attention_heads"),
            num_kv_heads=_integer(text, "num_key_value_heads"),
            head_dim=head_dim,
            rotary_dim=int(head_dim * rope["partial_rotary_factor"]),
            rope_theta=float(rope["rope_theta"]),
            mrope_section=tuple(rope["mrope_section"]),
            linear_num_key_heads=_integer(text, "linear_num_key_heads"),
            linear_num_value_heads=_integer(text, "linear_num_value_heads"),
            linear_key_head_dim=_integer(text, "linear_key_head_dim"),
            linear_value_head_dim=_integer(text, "linear_value_head_dim"),
            linear_conv_width=_integer(text, "linear_conv_kernel_dim"),
            num_experts=_integer(text, "num_experts"),
            num_experts_per_tok=_integer(text, "num_experts_per_tok"),
            moe_intermediate_size=_integer(text, "moe_intermediate_size"),
            shared_expert_intermediate_size=_integer(text, "shared_expert_intermediate_size"),
            rms_norm_eps=float(_field(text, "rms_norm_eps")),
            # In a nested file the outer field governs, as the head belongs to the outer model.
            tie_word_embeddings=bool(
                config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
            ),
            max_position_embeddings=_integer(text, "max_position_embeddings"),
        )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a `config.json` that describes the text model.

    Raises ValueError, naming the architecture, when the file describes another model.
    """
    model_type = config.get("model_type")
    if model_type == NESTED_MODEL_TYPE:
        return _field(config, "text_config")
    if model_type == FLAT_MODEL_TYPE:
        return config
    architectures = ", ".join(config.get("architectures") or ["not given"])
    raise ValueError(
        f"model_type is {model_type!r} (architectures: {architectures}): not a Qwen 3.5 MoE, whose "
        f"model_type is {NESTED_MODEL_TYPE!r} or {FLAT_MODEL_TYPE!r}; choose another checkpoint"
    )


def _check(condition: bool, name: str, value: Any, expected: str) -> None:
    if not condition:
        raise ValueError(f"config.json: {name} is {value!r}, but must be {expected}")


def _field(config: Mapping[str, Any], name: str) -> Any:
    if name not in config:
        raise ValueError(f"config.json: the field {name} is missing; add it")
    return config[name]


def _integer(config: Mapping[str, Any], name: str) -> int:
    value = _field(config, name)
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    _check(whole, name, value, "a positive integer")
    return value


def _layer_types(text: Mapping[str, Any], num_layers: int) -> tuple[str, ...]:
    """`layer_types`, or the older form: full attention in every n-th layer."""
    if text.get("layer_types") is not None:
        return tuple(text["layer_types"])
    interval = text.get("full_attention_interval", 4)
    kinds = (FULL_ATTENTION, LINEAR_ATTENTION)
    return tuple(kinds[bool((layer + 1) % interval)] for layer in range(num_layers))


def _check_layer_types(layer_types: tuple[str, ...], num_layers: int) -> None:
    count = f"one entry for each of the {num_layers} layers"
    _check(len(layer_types) == num_layers, "layer_types", layer_types, count)
    for layer, kind in enumerate(layer_types):
        known = kind in (LINEAR_ATTENTION, FULL_ATTENTION)
        kinds = f"{LINEAR_ATTENTION!r} or {FULL_ATTENTION!r}"
        _check(known, f"layer_types[{layer}]", kind, kinds)


def _rope_parameters(text: Mapping[str, Any]) -> dict[str, Any]:
    """Rope parameters from `rope_parameters`, or from the older top-level fields."""
    older = {name: text[name] for name in ("rope_theta", "partial_rotary_factor") if name in text}
    given = text.get("rope_parameters") or text.get("rope_scaling") or {}
    rope = {**_ROPE_DEFAULTS, **older, **given}
    rope_type = given.get("rope_type", given.get("type", "default"))
    only = "'default' (scaled rotary embeddings such as YaRN are not supported)"
    _check(rope_type == "default", "rope_type", rope_type, only)
    interleaved = rope["mrope_interleaved"]
    _check(interleaved is True, "mrope_interleaved", interleaved, "true (no other is supported)")
    return rope
