# SPDX-License-Identifier: Apache-2.0
"""Whole-model equality with transformers: tokens and log-probabilities."""

import re
from functools import cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.models.hf_reference import Reference
from tests.models.model_driver import Driver
from vllm_ironwood.checkpoints import make_checkpoint
from vllm_ironwood.models.qwen3_5_moe.config import ModelConfig
from vllm_ironwood.models.qwen3_5_moe.model import init_caches
from vllm_ironwood.models.qwen3_5_moe.weights import load_params, read_hf_config

STEPS = 64
TOLERANCE = 1e-3  # of a log-probability in float32
# Tokens whose reference log-probabilities differ by less than this may be chosen either way.
TOKEN_TIE = 1e-4

GDN, ATTENTION = "linear_attention", "full_attention"


class Case(NamedTuple):
    """A model, and the chunk sizes for batches of 17, 3 and 1 prompts."""

    fields: dict[str, Any]
    chunks: tuple[int, int, int]
    layout: str = "flat"
    experts: str = "fused"
    tied: bool = False
    shards: int = 1


def _fields(
    layers, heads=(4, 2), head_dim=32, gdn_heads=(2, 4), gdn_dims=(32, 32), experts=(8, 2), **more
):
    fields = {
        "hidden_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": head_dim,
        "linear_num_key_heads": gdn_heads[0],
        "linear_num_value_heads": gdn_heads[1],
        "linear_key_head_dim": gdn_dims[0],
        "linear_value_head_dim": gdn_dims[1],
        "num_experts": experts[0],
        "num_experts_per_tok": experts[1],
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
        "vocab_size": 307,
        "rope_theta": 10_000.0,
    }
    return {**fields, **more}


CASES = {
    "period-4-twice": Case(_fields(8), (63, 512, 16)),
    "period-4-depth-7-tied-nested": Case(
        _fields(7, gdn_heads=(1, 4), experts=(17, 4)), (512, 16, 63), "nested", tied=True
    ),
    "period-3-depth-5-ratio-1": Case(
        _fields(5, gdn_heads=(2, 2), experts=(5, 1), full_attention_interval=3),
        (16, 63, 512),
        experts="separate",
    ),
    "period-2-head-64-whole-rotary": Case(
        _fields(4, head_dim=64, full_attention_interval=2, partial_rotary_factor=1.0),
        (63, 16, 512),
        "nested",
        "separate",
        shards=3,
    ),
    "head-128-half-rotary": Case(
        _fields(4, heads=(2, 1), head_dim=128, gdn_dims=(64, 64), partial_rotary_factor=0.5),
        (512, 63, 16),
        shards=4,
    ),
    "head-256-gdn-128": Case(
        _fields(4, heads=(2, 2), head_dim=256, gdn_heads=(1, 2), gdn_dims=(128, 128)),
        (16, 512, 63),
        tied=True,
    ),
    "gdn-256": Case(
        _fields(2, full_attention_interval=2, gdn_heads=(1, 1), gdn_dims=(256, 256)),
        (63, 512, 512),
        "nested",
    ),
    "gdn-key-and-value-sizes-differ": Case(
        _fields(3, full_attention_interval=3, gdn_dims=(32, 64), experts=(4, 4)),
        (512, 16, 63),
    ),
    "irregular": Case(
        _fields(5, layer_types=[ATTENTION, ATTENTION, GDN, ATTENTION, GDN], experts=(6, 3)),
        (63, 16, 512),
        experts="separate",
    ),
    "gdn-only": Case(_fields(3, layer_types=[GDN] * 3, gdn_heads=(4, 4)), (16, 63, 512)),
    "attention-only": Case(
        _fields(2, layer_types=[ATTENTION] * 2, heads=(6, 3), linear_conv_kernel_dim=3),
        (512, 63, 16),
        "nested",
        tied=True,
    ),
    "one-layer-wide-conv": Case(
        _fields(1, layer_types=[GDN], linear_conv_kernel_dim=5, hidden_size=33, vocab_size=411),
        (63, 16, 512),
    ),
}


class Subject(NamedTuple):
    """The same weights here and in transformers."""

    driver: Driver
    reference: Reference
    config: ModelConfig


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    """A subject by name of its case and dtype; the last one made is kept."""

    @cache
    def make(name: str, dtype: str = "float32") -> Subject:
        case = CASES[name]
        directory = tmp_path_factory.mktemp(name)
        make_checkpoint(
            directory,
            layout=case.layout,
            seed=list(CASES).index(name),
            dtype=dtype,
            experts=case.experts,
            shards=case.shards,
            tie_word_embeddings=case.tied,
            overrides=case.fields,
        )
        config = ModelConfig.from_hf(read_hf_config(directory))
        params = load_params(config, directory, dtype, progress=False)
        return Subject(Driver(config, params), Reference(directory), config)

    return make


def draw_prompts(vocab_size: int) -> list[list[int]]:
    """17 prompts of 1 to 300 tokens."""
    random = np.random.default_rng(11)
    lengths = [1, 300, *random.integers(2, 130, 13), 2, 64]
    return [random.integers(0, vocab_size, length).tolist() for length in lengths]


@pytest.mark.parametrize("name", CASES)
def test_greedy_answers_equal_transformers_in_every_batch_and_chunk_size(subject, name):
    driver, reference, config = subject(name)
    prompts = draw_prompts(config.vocab_size)
    scored = [0, 0]  # positions compared, positions in all

    def check(prompt: list[int], answer: list[int], logprobs: np.ndarray) -> None:
        scores = reference.score([*prompt, *answer[:-1]])
        expected = scores.logprobs[len(prompt) - 1 :]
        defined = max(0, scores.defined - len(prompt) + 1)
        scored[0] += min(defined, STEPS)
        scored[1] += STEPS
        error = np.abs(logprobs - expected)[:defined]
        assert error.max(initial=0) < TOLERANCE
        best = expected.max(axis=1) - expected[np.arange(STEPS), answer]
        assert best[:defined].max(initial=0) < TOKEN_TIE

    answers = driver.generate(prompts, STEPS, CASES[name].chunks[0])
    for prompt, (answer, logprobs) in zip(prompts, answers):
        assert len(answer) == STEPS
        check(prompt, answer, logprobs)
    for count, chunk in zip((3, 1), CASES[name].chunks[1:]):
        fewer = driver.generate(prompts[1 : 1 + count], STEPS, chunk)
        for prompt, (answer, logprobs), (same, whole) in zip(prompts[1:], fewer, answers[1:]):
            if answer == same:
                assert np.abs(logprobs - whole).max() < TOLERANCE
            else:
                check(prompt, answer, logprobs)
    assert scored[0] > 0.9 * scored[1]


def test_caches_are_updated_in_place(subject):
    """Donated caches come back in their own memory, and no layer copies one."""
    step = subject("period-4-twice").driver.step
    caches = init_caches(
        subject("period-4-twice").config,
        num_pages=411,
        page_size=16,
        num_slots=19,
        dtype=jnp.float32,
        state_dtype=jnp.float32,
    )
    assert step.memory_analysis().alias_size_in_bytes == sum(pool.nbytes for pool in caches)
    program = step.as_text()
    for pool in caches:
        shape = f"f32[{','.join(map(str, pool.shape))}]"
        assert f"{shape}{{" in program
        assert not re.search(rf"{re.escape(shape)}\S* copy\(", program)


def test_bfloat16_is_no_further_from_float32_than_transformers_is(tmp_path):
    """The same bf16 weights: here in bf16, in transformers in bf16, in transformers in float32.

    A bf16 number is exact to 2^-9 of itself. Each of 16 residual additions and the roundings inside
    a layer add errors of that size, about 2^-9 * sqrt(50) = 1.4 % of a hidden state in all, and so
    of logits of unit deviation. A token whose router then picks another expert is off by more, so
    the median and the mean are bounded, not the maximum. Rounding less (float32 in the router, the
    delta rule, the norms and the logits) must not make it worse than transformers in bf16.
    """
    case = CASES["period-4-twice"]
    make_checkpoint(tmp_path, dtype="bfloat16", overrides=case.fields)
    config = ModelConfig.from_hf(read_hf_config(tmp_path))
    driver = Driver(config, load_params(config, tmp_path, "bfloat16", progress=False))
    exact, rounded = Reference(tmp_path), Reference(tmp_path, torch.bfloat16)
    prompts = draw_prompts(config.vocab_size)[1:7]
    ours, theirs = [], []
    for prompt, (answer, logprobs) in zip(prompts, driver.generate(prompts, 32, 63)):
        sequence = [*prompt, *answer[:-1]]
        expected = exact.score(sequence).logprobs[len(prompt) - 1 :]
        ours.append(np.abs(logprobs - expected))
        theirs.append(np.abs(rounded.score(sequence).logprobs[len(prompt) - 1 :] - expected))
    assert np.median(ours) < 0.05
    assert np.median(ours) < 1.1 * np.median(theirs)
    assert np.mean(ours) < 1.1 * np.mean(theirs)
