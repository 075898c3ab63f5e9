# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  registers bfloat16 with numpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csrc_pallas.grouped_matmul import fused_experts
from csrc_pallas.grouped_matmul.reference import FEW_ROWS, MANY_ROWS
from tests.kernels import oracles

LAYERS = 2


@dataclass(frozen=True)
class Shape:
    """Static sizes of an expert test. One compiled program each."""

    tokens: int
    experts: int
    choices: int
    hidden: int
    intermediate: int
    dtype: str = "float32"

    def __str__(self) -> str:
        sizes = f"{self.tokens}x{self.hidden}x{self.intermediate}"
        return f"{sizes}-top{self.choices}of{self.experts}-{self.dtype}"


SHAPES = [
    Shape(tokens=40, experts=1, choices=1, hidden=16, intermediate=8),
    Shape(tokens=16, experts=8, choices=2, hidden=32, intermediate=24),
    Shape(tokens=70, experts=5, choices=3, hidden=48, intermediate=17),
    Shape(tokens=33, experts=64, choices=8, hidden=24, intermediate=16),
    Shape(tokens=1, experts=3, choices=3, hidden=8, intermediate=4),
    Shape(tokens=70, experts=8, choices=2, hidden=32, intermediate=16, dtype="bfloat16"),
]
# Against float64: float32 sums; and inner values and an output rounded to bf16 (8 bits).
TOLERANCE = {"float32": 2e-6, "bfloat16": 6e-3}
program = jax.jit(fused_experts)


def route(shape: Shape, rng: np.random.Generator, allowed: int) -> np.ndarray:
    """Distinct experts for each token, of a random set of at least `choices`."""
    allowed = max(allowed, shape.choices)
    experts = rng.permutation(shape.experts)[:allowed]
    rows = [rng.permutation(experts)[: shape.choices] for _ in range(shape.tokens)]
    return np.asarray(rows, np.int32)


def inputs(shape: Shape, rng: np.random.Generator, ids: np.ndarray, num_tokens: int):
    """Arguments with NaN in padding rows and in the weights of experts that no token chose."""

    def normal(*size, scale=1.0):
        return (scale * rng.standard_normal(size, np.float32)).astype(shape.dtype)

    x = normal(shape.tokens, shape.hidden)
    weights = rng.random((shape.tokens, shape.choices), np.float32)
    experts = (LAYERS, shape.experts)
    gate_up = normal(*experts, shape.hidden, 2 * shape.intermediate, scale=shape.hidden**-0.5)
    down = normal(*experts, shape.intermediate, shape.hidden, scale=shape.intermediate**-0.5)
    idle = ~np.isin(np.arange(shape.experts), ids[:num_tokens])
    gate_up[:, idle] = np.nan
    down[:, idle] = np.nan
    x[num_tokens:] = np.nan
    weights[num_tokens:] = np.nan
    ids = ids.copy()
    ids[num_tokens:] = rng.choice([-3, 0, 2**31 - 1], (shape.tokens - num_tokens, shape.choices))
    return x, ids, weights, gate_up, down


def check(shape: Shape, num_tokens: int, allowed: int, layer: int = 1, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    ids = route(shape, rng, allowed)
    x, ids, weights, gate_up, down = inputs(shape, rng, ids, num_tokens)
    out = np.asarray(program(x, ids, weights, gate_up, down, num_tokens, layer))
    real = slice(0, num_tokens)
    expected = oracles.experts(x[real], ids[real], weights[real], gate_up[layer], down[layer])
    assert out.dtype == np.dtype(shape.dtype)
    assert oracles.relative_error(out[real], expected) < TOLERANCE[shape.dtype]
    assert not out[num_tokens:].any(), "padding rows must be zero"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_routing_gives_the_weighted_sum_of_the_experts(shape, data):
    check(
        shape,
        num_tokens=data.draw(st.integers(0, shape.tokens)),
        allowed=data.draw(st.integers(shape.choices, shape.experts)),
        layer=data.draw(st.integers(0, LAYERS - 1)),
        seed=data.draw(st.integers(0, 99)),
    )


@pytest.mark.parametrize("num_tokens", [0, 1, 7, 8, 9, 31, 32, 33, 40])
def test_one_expert_may_take_all_tokens(num_tokens):
    check(Shape(40, 4, 1, 16, 8), num_tokens, allowed=1)


def test_small_and_large_blocks_are_both_covered():
    pairs_per_expert = [shape.tokens * shape.choices / shape.experts for shape in SHAPES]
    assert min(pairs_per_expert) <= FEW_ROWS < MANY_ROWS < max(pairs_per_expert)


@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[2], SHAPES[-1]], ids=str)
def test_a_token_does_not_depend_on_the_others(shape):
    rng = np.random.default_rng(1)
    ids = route(shape, rng, shape.experts)
    x, ids, weights, gate_up, down = inputs(shape, rng, ids, shape.tokens)
    together = np.asarray(program(x, ids, weights, gate_up, down, shape.tokens, 0))
    for t in range(0, shape.tokens, 5):
        rolled = (np.roll(array, -t, axis=0) for array in (x, ids, weights))
        alone = np.asarray(program(*rolled, gate_up, down, 1, 0))
        assert oracles.same_bytes(alone[0], together[t])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"expert_ids": (7, 2)}, r"expert_ids has shape \(7, 2\), but must be .* = \(9, 2\)"),
        ({"expert_weights": (9, 3)}, "expert_weights has shape"),
        ({"gate_up": (2, 4, 16, 8)}, r"gate_up has shape .* = \(2, 4, 16, 16\)"),
        ({"down": (2, 4, 8, 15)}, "down has shape"),
        ({"num_tokens": (1,)}, "num_tokens has shape"),
    ],
)
def test_arguments_that_do_not_fit_are_named(change, message):
    shapes = {
        "x": (9, 16),
        "expert_ids": (9, 2),
        "expert_weights": (9, 2),
        "gate_up": (2, 4, 16, 16),
        "down": (2, 4, 8, 16),
        "num_tokens": (),
    }
    shapes |= change
    arrays = {name: jnp.zeros(size, jnp.float32) for name, size in shapes.items()}
    arrays["expert_ids"] = arrays["expert_ids"].astype(jnp.int32)
    with pytest.raises(ValueError, match=message):
        fused_experts(**arrays, layer=0)
