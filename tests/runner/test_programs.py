# SPDX-License-Identifier: Apache-2.0
"""Compiled programs are shared while somebody wants them, and let go afterwards."""

import dataclasses
import gc
from functools import lru_cache
from pathlib import Path

import jax
import jax.numpy as jnp

from vllm_ironwood.models.qwen3_5_moe.model import init_caches
from vllm_ironwood.models.qwen3_5_moe.params import ParamSpec, param_specs
from vllm_ironwood.models.qwen3_5_moe.published import QWEN3_5_35B_A3B
from vllm_ironwood.runner import programs
from vllm_ironwood.runner.buckets import Bucket
from vllm_ironwood.runner.token_rules import empty_tables

TINY = dataclasses.replace(
    QWEN3_5_35B_A3B,
    vocab_size=64,
    hidden_size=16,
    num_layers=2,
    layer_types=("linear_attention", "full_attention"),
    num_attention_heads=1,
    num_kv_heads=1,
    head_dim=32,
    rotary_dim=8,
    mrope_section=(2, 1, 1),
    linear_num_key_heads=1,
    linear_num_value_heads=1,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    num_experts=2,
    num_experts_per_tok=1,
    moe_intermediate_size=16,
    shared_expert_intermediate_size=16,
)


def memory_mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def compile_tiny(compiled_step, num_pages: int) -> None:
    specs = param_specs(TINY, jnp.float32)
    params = jax.tree.map(
        lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype),
        specs,
        is_leaf=lambda node: isinstance(node, ParamSpec),
    )
    state = jax.eval_shape(
        lambda: programs.StepState(
            init_caches(
                TINY,
                num_pages=num_pages,
                page_size=16,
                num_slots=2,
                dtype=jnp.float32,
                state_dtype=jnp.float32,
            ),
            jnp.zeros(2, jnp.int32),
            empty_tables(1, TINY.vocab_size),
        )
    )
    leaves, structure = jax.tree.flatten((params, state))
    compiled_step(TINY, Bucket(1, 1), 1, 1, "raw_logprobs", (), tuple(leaves), structure)


def test_programs_of_earlier_engines_give_their_memory_mappings_back():
    """Linux allows a process 65,530 mappings; without them XLA hangs or aborts."""
    one_kept = lru_cache(maxsize=1)(programs._compiled_step.__wrapped__)
    compile_tiny(one_kept, num_pages=2)
    with_one = memory_mappings()
    for num_pages in (3, 4):
        compile_tiny(one_kept, num_pages)
    gc.collect()
    grown = memory_mappings() - with_one
    one_kept.cache_clear()
    gc.collect()
    of_one_program = with_one + grown - memory_mappings()
    assert of_one_program > 100
    assert grown < of_one_program / 2


def test_engines_of_equal_shapes_share_a_program():
    before = programs._compiled_step.cache_info()
    compile_tiny(programs._compiled_step, num_pages=5)
    compile_tiny(programs._compiled_step, num_pages=5)
    after = programs._compiled_step.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 1)
