# SPDX-License-Identifier: Apache-2.0
"""The memory plan adds up, and says truly how many requests run at once."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from vllm_ironwood.cache.memory_plan import (
    Layout,
    MemoryPlan,
    bytes_per_slot,
    bytes_per_token,
    plan_deployment,
    state_shapes,
    step_temporary_bytes,
    weight_bytes,
)
from vllm_ironwood.cache.plan import CacheMemoryError, CachePlan
from vllm_ironwood.models.qwen3_5_moe.model import init_caches
from vllm_ironwood.models.qwen3_5_moe.params import param_specs
from vllm_ironwood.models.qwen3_5_moe.published import QWEN3_5_35B_A3B, QWEN3_5_397B_A17B

GB = 10**9
HBM_OF_A_TPU7X_DEVICE = 103 * GB
# Eight devices: four replicas of the attention, each over the two cores of a chip.
EIGHT_DEVICES = Layout(head_shards=2, expert_shards=8)


def plan_397b(max_model_len: int, **changes) -> MemoryPlan:
    arguments = {
        "limit": int(0.92 * HBM_OF_A_TPU7X_DEVICE),
        "dtype": jnp.bfloat16,
        "state_dtype": jnp.float32,
        "page_dtype": jnp.bfloat16,
        "expert_dtype": jnp.float8_e4m3fn,
        "block_size": 128,
        "max_model_len": max_model_len,
        "max_requests": 64,
        "max_tokens": 8192,
    }
    return plan_deployment(QWEN3_5_397B_A17B, EIGHT_DEVICES, **{**arguments, **changes})


def a_plan(**changes) -> MemoryPlan:
    caches = CachePlan(
        num_slots=25,
        slots_per_request=3,
        bytes_per_slot=1000,
        bytes_per_page=640,
        page_bytes=41 * 640,
    )
    fields = {
        "limit": 10**6,
        "weights": 500_000,
        "step_temporaries": 100_000,
        "sampling_tables": 2_000,
        "caches": caches,
        "block_size": 16,
        "max_model_len": 100,
        "max_requests": 64,
    }
    return MemoryPlan(**{**fields, **changes})


@pytest.mark.parametrize("max_model_len", [10_000, 262_144])
def test_b2_the_397b_model_starts_with_caching_on_eight_devices(max_model_len):
    """Acceptance row B2: no state is planned for every attention block."""
    plan = plan_397b(max_model_len)

    # 3 x 4096 x 1024 parameters a routed expert and layer, one byte each, an eighth of them here.
    experts = 60 * 512 * 3 * 4096 * 1024 // 8
    assert experts < plan.weights < experts + 12 * GB
    # One KV head of 256 in 15 layers, keys and values in bf16.
    assert plan.bytes_per_token == 15 * 1 * 2 * 256 * 2
    # 32 of 64 value heads in 45 layers in float32, and the convolution's three columns in bf16.
    assert plan.caches.bytes_per_slot == 45 * (32 * 128 * 128 * 4 + 3 * 6144 * 2)
    assert plan.used <= plan.limit

    running, _ = plan.concurrency()
    caches_by_hand = plan.limit - plan.weights - plan.step_temporaries - plan.sampling_tables
    states = caches_by_hand // 2 // plan.caches.bytes_per_slot  # a half of the caches
    pages = caches_by_hand // 2 // (math.ceil(max_model_len / 128) * 128 * plan.bytes_per_token)
    assert running == min(64, states // 3, pages) == {10_000: 61, 262_144: 4}[max_model_len]


def test_b2_a_bf16_state_lets_all_64_requests_of_10k_run():
    assert plan_397b(10_000, state_dtype=jnp.bfloat16).concurrency() == (64, "--max-num-seqs")


def test_b2_one_device_is_too_small_for_the_397b_model_and_the_plan_says_so():
    with pytest.raises(CacheMemoryError, match="GDN state slots"):
        plan_deployment(
            QWEN3_5_397B_A17B,
            Layout(),
            limit=HBM_OF_A_TPU7X_DEVICE,
            dtype=jnp.bfloat16,
            state_dtype=jnp.float32,
            page_dtype=jnp.bfloat16,
            expert_dtype=jnp.float8_e4m3fn,
            block_size=128,
            max_model_len=10_000,
            max_requests=64,
            max_tokens=8192,
        )


def test_heads_that_do_not_divide_are_refused_by_name():
    with pytest.raises(ValueError, match="2 key-value heads cannot be divided among 4 devices"):
        Layout(head_shards=4, expert_shards=8).check(QWEN3_5_397B_A17B)


@pytest.mark.parametrize("model", [QWEN3_5_397B_A17B, QWEN3_5_35B_A3B], ids=["397B", "35B"])
def test_d3_bytes_per_token_and_slot_are_what_the_caches_allocate(model):
    """Acceptance row D3: no layer is counted twice, in either pool."""
    caches = jax.eval_shape(
        lambda: init_caches(
            model,
            num_pages=10,
            page_size=128,
            num_slots=7,
            dtype=jnp.bfloat16,
            state_dtype=jnp.float32,
        )
    )
    size = {name: math.prod(a.shape) * a.dtype.itemsize for name, a in caches._asdict().items()}
    assert size["pages"] == 10 * 128 * bytes_per_token(model, jnp.bfloat16)
    assert size["conv_state"] + size["recurrent_state"] == 7 * bytes_per_slot(
        model, jnp.bfloat16, jnp.float32
    )
    conv, state = state_shapes(model)
    assert caches.conv_state.shape[2:] == conv
    assert caches.recurrent_state.shape[2:] == state


def test_the_shares_of_all_devices_add_up_to_the_weights():
    model = QWEN3_5_35B_A3B
    whole = weight_bytes(model, jnp.bfloat16)
    specs = jax.tree.leaves(
        param_specs(model, jnp.bfloat16), is_leaf=lambda node: hasattr(node, "axes")
    )
    assert whole == sum(spec.nbytes for spec in specs)
    # What is not divided lies on both devices, so two shares are a little more than the whole.
    share = weight_bytes(model, jnp.bfloat16, Layout(head_shards=2, expert_shards=2))
    assert whole < 2 * share < 1.01 * whole


def test_fp8_experts_take_half_of_bf16_ones():
    model = QWEN3_5_35B_A3B
    experts = 40 * 256 * 3 * 2048 * 512
    saved = weight_bytes(model, jnp.bfloat16) - weight_bytes(
        model, jnp.bfloat16, expert_dtype=jnp.float8_e4m3fn
    )
    assert saved == experts


def test_step_temporaries_grow_with_tokens_and_with_requests():
    def estimate(tokens, requests):
        return step_temporary_bytes(
            QWEN3_5_397B_A17B, jnp.bfloat16, max_tokens=tokens, max_requests=requests
        )

    assert estimate(8192, 64) > estimate(2048, 64)
    assert estimate(2048, 256) - estimate(2048, 64) == 3 * 192 * 248_320 * 4


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (5, "attention pages")),  # 40 pages but the null page, 7 a request
        ({"max_model_len": 16}, (8, "GDN state slots")),
        ({"max_model_len": 16, "max_requests": 2}, (2, "--max-num-seqs")),
    ],
)
def test_concurrency_names_what_limits_it(changes, expected):
    assert a_plan(**changes).concurrency() == expected


def test_concurrency_can_be_asked_for_shorter_requests():
    assert a_plan().concurrency(tokens=16) == (8, "GDN state slots")


def test_the_table_shows_every_use_and_adds_up():
    plan = a_plan(limit=None)
    table = plan.table()
    for use in ("weights", "step temporaries", "attention pages", "GDN states", "GDN snapshots"):
        assert use in table
    assert "40 B/token" in table
    assert "5 run at once (limit: attention pages)" in " ".join(table.split())
    assert plan.used == 500_000 + 100_000 + 2_000 + 25 * 1000 + 41 * 640
    assert "left" not in table


def test_the_table_says_what_is_left_of_a_limited_memory():
    plan = a_plan(limit=3 * 2**20)
    left = next(line for line in plan.table().splitlines() if " left " in line)
    assert f"{(3 * 2**20 - plan.used) / 2**20:.1f}" in left


def test_slots_that_requests_may_hold_are_not_called_snapshots():
    caches = dataclasses.replace(a_plan().caches, num_slots=9)
    table = a_plan(caches=caches, max_requests=2).table()
    snapshots = next(line for line in table.splitlines() if "snapshots" in line)
    assert "3 slots" in snapshots
