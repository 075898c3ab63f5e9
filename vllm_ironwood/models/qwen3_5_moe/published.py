# SPDX-License-Identifier: Apache-2.0
"""Dimensions of the published models, for plans and costs without their checkpoints."""

import dataclasses

from vllm_ironwood.models.qwen3_5_moe.config import ModelConfig


def _layer_types(num_layers: int) -> tuple[str, ...]:
    """Three Gated DeltaNet layers, then one of full attention, over and over."""
    return (*("linear_attention",) * 3, "full_attention") * (num_layers // 4)


QWEN3_5_397B_A17B = ModelConfig(
    vocab_size=248_320,
    hidden_size=4096,
    num_layers=60,
    layer_types=_layer_types(60),
    num_attention_heads=32,
    num_kv_heads=2,
    head_dim=256,
    rotary_dim=64,
    rope_theta=1e7,
    mrope_section=(11, 11, 10),
    linear_num_key_heads=16,
    linear_num_value_heads=64,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_conv_width=4,
    num_experts=512,
    num_experts_per_tok=10,
    moe_intermediate_size=1024,
    shared_expert_intermediate_size=1024,
    rms_norm_eps=1e-6,
    tie_word_embeddings=False,
    max_position_embeddings=262_144,
)

QWEN3_5_35B_A3B = dataclasses.replace(
    QWEN3_5_397B_A17B,
    hidden_size=2048,
    num_layers=40,
    layer_types=_layer_types(40),
    num_attention_heads=16,
    linear_num_value_heads=32,
    num_experts=256,
    num_experts_per_tok=8,
    moe_intermediate_size=512,
    shared_expert_intermediate_size=512,
)
