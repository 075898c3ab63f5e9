# SPDX-License-Identifier: Apache-2.0
"""The parts of the model against transformers and against their definitions."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as hf

from vllm_ironwood.models.qwen3_5_moe.config import ModelConfig
from vllm_ironwood.models.qwen3_5_moe.experts import route
from vllm_ironwood.models.qwen3_5_moe.layers import entry, rms_norm, rotary, rotate
from vllm_ironwood.models.qwen3_5_moe.model import layer_period, runs

GDN, ATTENTION = "linear_attention", "full_attention"
PUBLISHED = ModelConfig.from_hf(Qwen3_5MoeTextConfig().to_dict())


@pytest.mark.parametrize(
    ("head_dim", "factor", "section"),
    [(256, 0.25, [11, 11, 10]), (32, 1.0, [6, 5, 5]), (64, 0.5, [3, 3, 3]), (48, 0.25, [9, 9, 9])],
)
def test_rotary_embedding_follows_time_height_and_width(head_dim, factor, section):
    rope = {"rope_theta": 1e4, "partial_rotary_factor": factor, "mrope_section": section}
    hf_config = Qwen3_5MoeTextConfig(head_dim=head_dim, rope_parameters=rope | _DEFAULT_ROPE)
    config = ModelConfig.from_hf(hf_config.to_dict())
    random = np.random.default_rng(0)
    positions = random.integers(0, 4000, (3, 13)).astype(np.int32)
    query = random.standard_normal((13, 5, head_dim)).astype(np.float32)
    key = random.standard_normal((13, 1, head_dim)).astype(np.float32)

    angles = hf.Qwen3_5MoeTextRotaryEmbedding(hf_config)
    cos, sin = angles(torch.tensor(query), torch.tensor(positions)[:, None])
    expected = hf.apply_rotary_pos_emb(
        torch.tensor(query).transpose(0, 1)[None], torch.tensor(key).transpose(0, 1)[None], cos, sin
    )
    ours = rotary(config, jnp.asarray(positions))
    for heads, wanted in zip((query, key), expected):
        np.testing.assert_allclose(
            rotate(jnp.asarray(heads), ours), wanted[0].transpose(0, 1).numpy(), atol=2e-3
        )


_DEFAULT_ROPE = {"rope_type": "default", "mrope_interleaved": True}


def test_rotary_angles_stay_exact_at_long_context():
    """Positions past 2^15, where 16-bit positions would wrap and bf16 angles would be noise."""
    positions = np.array([0, 32767, 32768, 65540, 262143], np.int32)
    angles = rotary(PUBLISHED, jnp.broadcast_to(jnp.asarray(positions), (3, 5)))
    frequency = 1e4 ** (-np.arange(32) / 32)
    exact = positions[:, None].astype(np.float64) * frequency
    # A float32 angle of 262143 is exact to 2^-7, the frequency to 2^-24 of itself.
    np.testing.assert_allclose(angles.cos[:, 0], np.cos(exact), atol=0.05)
    np.testing.assert_allclose(angles.sin[:3, 0], np.sin(exact[:3]), atol=8e-3)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_rms_norm_scales_by_one_plus_weight_in_float32(dtype):
    random = np.random.default_rng(1)
    x = jnp.asarray(random.standard_normal((7, 33)) * 100, dtype)
    weight = jnp.asarray(random.standard_normal(33), dtype)
    x64, w64 = np.asarray(x, np.float64), np.asarray(weight, np.float64)
    expected = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-6) * (1 + w64)
    got = rms_norm(x, weight, 1e-6)
    assert got.dtype == dtype
    rounding = 2**-8 if dtype == jnp.bfloat16 else 1e-6
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=rounding, atol=1e-6)


@pytest.mark.parametrize(("experts", "top_k"), [(4, 1), (17, 4), (5, 5)])
def test_routing_is_softmax_then_top_k_then_renormalised(experts, top_k):
    random = np.random.default_rng(2)
    x = random.standard_normal((9, 24)).astype(np.float32)
    router = random.standard_normal((24, experts)).astype(np.float32)
    config = replace(PUBLISHED, num_experts=experts, num_experts_per_tok=top_k)
    ids, weights = route(config, jnp.asarray(router), jnp.asarray(x))
    logits = x.astype(np.float64) @ router
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    chosen = np.argsort(-probabilities, axis=-1)[:, :top_k]
    best = np.take_along_axis(probabilities, chosen, -1)
    np.testing.assert_array_equal(ids, chosen)
    np.testing.assert_allclose(weights, best / best.sum(-1, keepdims=True), rtol=1e-5)
    assert (ids.dtype, weights.dtype) == (jnp.int32, jnp.float32)


@pytest.mark.parametrize(
    ("dtype", "integer"), [(np.float32, np.uint32), (jnp.bfloat16, np.uint16)], ids=["f32", "bf16"]
)
def test_an_entry_of_a_stack_keeps_every_bit(dtype, integer):
    bits = np.random.default_rng(3).integers(0, 2**16, (5, 6, 7)).astype(integer)
    take = jax.jit(entry)
    for layer in range(5):
        got = np.asarray(take(jnp.asarray(bits.view(dtype)), layer))
        np.testing.assert_array_equal(got.view(integer), bits[layer])


def test_an_entry_of_a_bf16_stack_does_not_convert_the_stack_on_the_cpu():
    def total(stack):
        return jax.lax.fori_loop(0, 9, lambda i, x: x @ entry(stack, i), entry(stack, 8))

    compiled = jax.jit(total).lower(jnp.zeros((9, 64, 64), jnp.bfloat16)).compile()
    assert "f32[9,64,64]" not in compiled.as_text()


@pytest.mark.parametrize(
    ("layer_types", "period"),
    [
        ((GDN, GDN, GDN, ATTENTION) * 3, 4),
        ((GDN, GDN, ATTENTION) * 2 + (GDN,), 3),
        ((GDN,) * 5, 1),
        ((ATTENTION, GDN, GDN, ATTENTION), 3),
        ((ATTENTION, ATTENTION, GDN, ATTENTION, GDN), 5),
        ((GDN, GDN, ATTENTION), 3),
        ((ATTENTION,), 1),
    ],
)
def test_the_period_of_the_layer_pattern_is_found(layer_types, period):
    assert layer_period(layer_types) == period


@given(st.lists(st.sampled_from([GDN, ATTENTION]), min_size=1, max_size=12).map(tuple))
def test_runs_of_layers_cover_every_layer_once_in_order(layer_types):
    for start in range(len(layer_types) + 1):
        layers = []
        for run in runs(layer_types, start):
            for i in range(run.count):
                layers.append(run.layer + i)
                assert layer_types[run.layer + i] == run.kind
                assert layer_types[: run.layer + i].count(run.kind) == run.of_kind + i
        assert layers == list(range(start, len(layer_types)))
