# SPDX-License-Identifier: Apache-2.0
"""The tensors of a checkpoint: names, shapes, and random values that depend on seed and name only.

Weights are drawn so that activations keep their scale through the layers and so that nothing is at
a special value: norms are not all ones, decays spread over three orders of magnitude.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from math import log
from typing import Any, NamedTuple

import numpy as np

from vllm_ironwood.checkpoints.sizes import vision_fields

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


class Tensor(NamedTuple):
    """A tensor to be written; `values(seed)` draws it."""

    name: str
    shape: tuple[int, ...]
    values: Callable[[int], np.ndarray]


def _drawn(name: str, shape: tuple[int, ...], draw: Draw) -> Tensor:
    return Tensor(name, shape, lambda seed: draw(_generator(seed, name), shape))


def _generator(seed: int, name: str) -> np.random.Generator:
    # The layouts differ in the prefix; the values shall not.
    plain = name.replace("model.language_model.", "model.")
    return np.random.default_rng([seed, zlib.crc32(plain.encode())])


def _normal(deviation: float, mean: float = 0.0) -> Draw:
    def draw(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return mean + deviation * random.standard_normal(shape, dtype=np.float32)

    return draw


def _log_decay(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """log A, uniform over the range in which A is initialised for training."""
    return random.uniform(log(0.01), log(16.0), shape)


_DEVIATION = _normal(0.2)  # of a norm weight that is stored as its distance from 1


def checkpoint_tensors(
    fields: Mapping[str, Any], *, layout: str, experts: str, tie_word_embeddings: bool
) -> Iterator[Tensor]:
    """Every tensor of the checkpoint, in the order of the layers."""
    prefix = "model." if layout == "flat" else "model.language_model."
    hidden, vocab = fields["hidden_size"], fields["vocab_size"]
    # A tied embedding is drawn at the head's scale, so that logits have about unit deviation.
    embedding = _normal(hidden**-0.5 if tie_word_embeddings else 1.0)
    yield _drawn(f"{prefix}embed_tokens.weight", (vocab, hidden), embedding)
    for layer, kind in enumerate(fields["layer_types"]):
        yield from _layer(f"{prefix}layers.{layer}.", fields, kind, experts)
    yield _drawn(f"{prefix}norm.weight", (hidden,), _DEVIATION)
    if not tie_word_embeddings:
        yield _linear("lm_head", vocab, hidden)
    if layout == "nested":
        yield from _vision(vision_fields(hidden))
        yield from _multi_token_prediction(fields, experts)


def _linear(name: str, outputs: int, inputs: int) -> Tensor:
    return _drawn(f"{name}.weight", (outputs, inputs), _normal(inputs**-0.5))


def _layer(at: str, fields: Mapping[str, Any], kind: str, experts: str) -> Iterator[Tensor]:
    hidden = fields["hidden_size"]
    yield _drawn(f"{at}input_layernorm.weight", (hidden,), _DEVIATION)
    if kind == "full_attention":
        yield from _attention(f"{at}self_attn.", fields)
    else:
        yield from _gdn(f"{at}linear_attn.", fields)
    yield _drawn(f"{at}post_attention_layernorm.weight", (hidden,), _DEVIATION)
    yield from _mixture_of_experts(f"{at}mlp.", fields, experts)


def _attention(at: str, fields: Mapping[str, Any]) -> Iterator[Tensor]:
    hidden, head_dim = fields["hidden_size"], fields["head_dim"]
    query = fields["num_attention_heads"] * head_dim
    key = fields["num_key_value_heads"] * head_dim
    yield _linear(f"{at}q_proj", 2 * query, hidden)
    yield _linear(f"{at}k_proj", key, hidden)
    yield _linear(f"{at}v_proj", key, hidden)
    yield _linear(f"{at}o_proj", hidden, query)
    yield _drawn(f"{at}q_norm.weight", (head_dim,), _DEVIATION)
    yield _drawn(f"{at}k_norm.weight", (head_dim,), _DEVIATION)


def _gdn(at: str, fields: Mapping[str, Any]) -> Iterator[Tensor]:
    hidden, heads = fields["hidden_size"], fields["linear_num_value_heads"]
    key = fields["linear_num_key_heads"] * fields["linear_key_head_dim"]
    value = heads * fields["linear_value_head_dim"]
    width = fields["linear_conv_kernel_dim"]
    yield _linear(f"{at}in_proj_qkv", 2 * key + value, hidden)
    yield _linear(f"{at}in_proj_z", value, hidden)
    yield _linear(f"{at}in_proj_b", heads, hidden)
    yield _linear(f"{at}in_proj_a", heads, hidden)
    yield _drawn(f"{at}conv1d.weight", (2 * key + value, 1, width), _normal(width**-0.5))
    yield _drawn(f"{at}A_log", (heads,), _log_decay)
    yield _drawn(f"{at}dt_bias", (heads,), _normal(1.0))
    yield _drawn(f"{at}norm.weight", (fields["linear_value_head_dim"],), _normal(0.2, mean=1.0))
    yield _linear(f"{at}out_proj", hidden, value)


def _mixture_of_experts(at: str, fields: Mapping[str, Any], experts: str) -> Iterator[Tensor]:
    hidden, shared = fields["hidden_size"], fields["shared_expert_intermediate_size"]
    yield _linear(f"{at}gate", fields["num_experts"], hidden)
    yield from (_fused_experts if experts == "fused" else _separate_experts)(at, fields)
    yield _linear(f"{at}shared_expert.gate_proj", shared, hidden)
    yield _linear(f"{at}shared_expert.up_proj", shared, hidden)
    yield _linear(f"{at}shared_expert.down_proj", hidden, shared)
    yield _linear(f"{at}shared_expert_gate", 1, hidden)


def _separate_experts(at: str, fields: Mapping[str, Any]) -> Iterator[Tensor]:
    hidden, width = fields["hidden_size"], fields["moe_intermediate_size"]
    for expert in range(fields["num_experts"]):
        yield _linear(f"{at}experts.{expert}.gate_proj", width, hidden)
        yield _linear(f"{at}experts.{expert}.up_proj", width, hidden)
        yield _linear(f"{at}experts.{expert}.down_proj", hidden, width)


def _fused_experts(at: str, fields: Mapping[str, Any]) -> Iterator[Tensor]:
    """The same values as of separate experts: [expert, 2 * width, hidden] holds gate and up."""
    count, hidden = fields["num_experts"], fields["hidden_size"]
    width = fields["moe_intermediate_size"]
    separate = list(_separate_experts(at, fields))
    gate_up = [tensor for tensor in separate if not tensor.name.endswith("down_proj.weight")]
    down = [tensor for tensor in separate if tensor.name.endswith("down_proj.weight")]
    yield _joined(f"{at}experts.gate_up_proj", (count, 2 * width, hidden), gate_up)
    yield _joined(f"{at}experts.down_proj", (count, hidden, width), down)


def _joined(name: str, shape: tuple[int, ...], tensors: list[Tensor]) -> Tensor:
    def values(seed: int) -> np.ndarray:
        return np.concatenate([tensor.values(seed) for tensor in tensors]).reshape(shape)

    return Tensor(name, shape, values)


def _vision(vision: Mapping[str, Any]) -> Iterator[Tensor]:
    hidden, inner = vision["hidden_size"], vision["intermediate_size"]
    patch = (vision["in_channels"], vision["temporal_patch_size"], *[vision["patch_size"]] * 2)
    merged = hidden * vision["spatial_merge_size"] ** 2
    small = _normal(vision["initializer_range"])
    block = "model.visual.blocks.0."
    shapes = {
        "model.visual.patch_embed.proj.weight": (hidden, *patch),
        "model.visual.patch_embed.proj.bias": (hidden,),
        "model.visual.pos_embed.weight": (vision["num_position_embeddings"], hidden),
        f"{block}norm1.weight": (hidden,),
        f"{block}norm1.bias": (hidden,),
        f"{block}norm2.weight": (hidden,),
        f"{block}norm2.bias": (hidden,),
        f"{block}attn.qkv.weight": (3 * hidden, hidden),
        f"{block}attn.qkv.bias": (3 * hidden,),
        f"{block}attn.proj.weight": (hidden, hidden),
        f"{block}attn.proj.bias": (hidden,),
        f"{block}mlp.linear_fc1.weight": (inner, hidden),
        f"{block}mlp.linear_fc1.bias": (inner,),
        f"{block}mlp.linear_fc2.weight": (hidden, inner),
        f"{block}mlp.linear_fc2.bias": (hidden,),
        "model.visual.merger.norm.weight": (hidden,),
        "model.visual.merger.norm.bias": (hidden,),
        "model.visual.merger.linear_fc1.weight": (merged, merged),
        "model.visual.merger.linear_fc1.bias": (merged,),
        "model.visual.merger.linear_fc2.weight": (vision["out_hidden_size"], merged),
        "model.visual.merger.linear_fc2.bias": (vision["out_hidden_size"],),
    }
    return (_drawn(name, shape, small) for name, shape in shapes.items())


def _multi_token_prediction(fields: Mapping[str, Any], experts: str) -> Iterator[Tensor]:
    hidden = fields["hidden_size"]
    yield _linear("mtp.fc", hidden, 2 * hidden)
    for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        yield _drawn(f"mtp.{norm}.weight", (hidden,), _DEVIATION)
    yield from _layer("mtp.layers.0.", fields, "full_attention", experts)
