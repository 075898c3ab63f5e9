# SPDX-License-Identifier: Apache-2.0
import functools

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  registers bfloat16 with numpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csrc_pallas.ragged_paged_attention import ragged_paged_attention
from csrc_pallas.ragged_paged_attention.reference import KV_BLOCK, PREFILL_TILE
from tests.kernels import oracles
from tests.kernels.attention_pool import Pool, Shape
from tests.kernels.ragged import Step, step, steps

SHAPES = [
    Shape(query_heads=4, kv_heads=2, head_dim=32, page_size=16, pages_per_request=27),
    Shape(query_heads=3, kv_heads=1, head_dim=64, page_size=48, pages_per_request=9),
    Shape(query_heads=2, kv_heads=2, head_dim=40, page_size=128, pages_per_request=5),
    Shape(query_heads=8, kv_heads=1, head_dim=256, page_size=256, pages_per_request=3),
    Shape(
        query_heads=6, kv_heads=2, head_dim=32, page_size=16, pages_per_request=27, dtype="bfloat16"
    ),
]
# Against float64: float32 sums, and a result that is rounded to bf16 (8 bits).
TOLERANCE = {"float32": 1e-6, "bfloat16": 4e-3}


@functools.cache
def program(head_dim: int):
    return jax.jit(functools.partial(ragged_paged_attention, sm_scale=head_dim**-0.5))


def run(shape: Shape, pool: Pool, work: Step, layer: int):
    out, pages = program(shape.head_dim)(
        pool.q,
        pool.k,
        pool.v,
        pool.pages,
        pool.block_tables,
        work.batch(shape.max_requests),
        layer,
    )
    return np.asarray(out), np.asarray(pages)


def check(shape: Shape, work: Step, layer: int = 1, seed: int = 0) -> None:
    pool = Pool.of(shape, work, layer, seed)
    out, pages = run(shape, pool, work, layer)
    expected = np.zeros(pool.q.shape)
    for rows, kv in zip(work.rows(), pool.history, strict=True):
        k, v = kv[..., : shape.head_dim], kv[..., shape.head_dim :]
        if len(pool.q[rows]):
            expected[rows] = oracles.attention(pool.q[rows], k, v, shape.head_dim**-0.5)
    assert out.dtype == pool.q.dtype
    assert oracles.relative_error(out, expected) < TOLERANCE[shape.dtype]
    assert not out[work.num_tokens :].any(), "padding rows must be zero"
    assert oracles.same_bytes(pages, pool.pages_after(work, layer))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_mix_of_requests_attends_as_the_definition_says(shape, data):
    edges = [1, shape.page_size, PREFILL_TILE, KV_BLOCK]
    lengths = sorted({0, *(edge + d for edge in edges for d in (-1, 0, 1))})
    work = data.draw(
        steps(
            max_tokens=shape.max_tokens,
            max_requests=shape.max_requests,
            contexts=[*lengths, 2 * KV_BLOCK + 5],
            news=[n for n in lengths if n <= shape.max_tokens],
        )
    )
    check(shape, work, layer=data.draw(st.integers(0, 1)), seed=data.draw(st.integers(0, 99)))


@pytest.mark.parametrize(
    "work",
    [
        step([], []),
        step([0], []),
        step([0, 300, 16, 15, 1, 128], []),
        step([], [(0, 160)]),
        step([], [(33, 1), (0, 0), (271, 159)]),
        step([5, 31], [(0, 0)]),
        step([47], [(48, 49), (0, 47), (1, 1)]),
    ],
    ids=["empty", "first-token", "decodes", "prefill", "odd-prefills", "idle", "mixed"],
)
def test_steps_with_only_some_kinds_of_requests(work):
    check(SHAPES[0], work)


def test_fewer_token_rows_than_requests():
    shape = Shape(2, 1, 32, 16, 3, max_tokens=2, max_requests=6)
    check(shape, step([17, 5], []))


def test_one_program_serves_every_step_of_a_shape():
    shape = SHAPES[0]
    check(shape, step([3, 200], []))
    compiled = program(shape.head_dim)._cache_size()
    for work in (step([], [(0, 100)]), step([1], [(400, 3)]), step([], [])):
        check(shape, work, layer=0)
    assert program(shape.head_dim)._cache_size() == compiled


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[-1]], ids=str)
def test_a_result_does_not_depend_on_the_rest_of_the_batch(shape):
    work = step([130, 300, 2], [(100, 70), (0, 5)])
    pool = Pool.of(shape, work, 0, seed=3)
    together, _ = run(shape, pool, work, 0)
    for r, (request, rows) in enumerate(zip(work.requests, work.rows(), strict=True)):
        alone = Step([request], int(r < work.num_decodes))
        others = np.arange(shape.max_tokens) >= request.new

        def first(x, rows=rows, others=others):
            x = np.roll(x, -rows.start, axis=0)
            x[others] = np.nan
            return x

        tables = np.roll(pool.block_tables, -r, axis=0)
        solo = Pool(first(pool.q), first(pool.k), first(pool.v), pool.pages, tables, [])
        out, _ = run(shape, solo, alone, 0)
        assert oracles.same_bytes(out[: request.new], together[rows])


@pytest.mark.parametrize("cut", [1, 16, 33, 128, 159])
def test_decode_reads_what_prefill_wrote(cut):
    """The pages hold the same bytes, whichever arm wrote them."""
    shape = SHAPES[0]
    whole = step([], [(0, 160)])
    pool = Pool.of(shape, whole, 1, seed=4)
    full, _ = run(shape, pool, whole, 1)

    _, pages = run(shape, pool, step([], [(0, cut)]), 1)
    token = {}
    for name in ("q", "k", "v"):
        token[name] = np.full_like(getattr(pool, name), np.nan)
        token[name][0] = getattr(pool, name)[cut]
    later = Pool(**token, pages=pages, block_tables=pool.block_tables, history=[])
    out, pages = run(shape, later, step([cut], []), 1)
    assert oracles.relative_error(out[0], full[cut]) < TOLERANCE[shape.dtype]
    assert oracles.same_bytes(pages, pool.pages_after(step([], [(0, cut + 1)]), 1))


@pytest.mark.parametrize("first", [32_760, 65_530])
def test_a_key_at_position_5_is_found_from_far_positions(first):
    """Positions do not wrap at 16 bits, in prefill and in decode."""
    shape = Shape(2, 1, 32, 256, 257, max_tokens=21, max_requests=1, layers=1)
    needle = np.zeros(32, np.float32)
    needle[3] = 1.0
    pages = np.zeros((1, 257, 1, 256, 64), np.float32)
    table = np.random.default_rng(0).permutation(257).astype(np.int32)[None]
    pages[0, table[0, 0], 0, 5, :32] = 1e3 * needle
    pages[0, table[0, 0], 0, 5, 32:] = np.arange(32)
    q = np.broadcast_to(needle, (21, 2, 32))
    k, v = np.zeros((21, 1, 32), np.float32), np.full((21, 1, 32), -1.0, np.float32)
    pool = Pool(q, k, v, pages, table, [])
    expected = np.broadcast_to(np.arange(32), (21, 2, 32))

    out, pages = run(shape, pool, step([], [(first, 21)]), 0)
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    pool.pages = pages
    for position in range(first, first + 21, 5):
        out, _ = run(shape, pool, step([position], []), 0)
        np.testing.assert_allclose(out[:1], expected[:1], rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": (8, 3, 32)}, "query heads = 3 must be a positive multiple of KV heads = 2"),
        ({"k": (7, 2, 32)}, r"k has shape \(7, 2, 32\), but must be \[T, Hkv, D\] = \(8, 2, 32\)"),
        ({"v": (8, 2, 16)}, "v has shape"),
        ({"pages": (1, 5, 2, 16, 32)}, r"pages has shape .* = \(1, 5, 2, 16, 64\)"),
        ({"pages": (5, 2, 16, 64)}, "pages has shape"),
        ({"block_tables": (4, 3)}, "block_tables has shape"),
        ({"layer": (2,)}, "layer has shape"),
    ],
)
def test_arguments_that_do_not_fit_are_named(change, message):
    shapes = {
        "q": (8, 4, 32),
        "k": (8, 2, 32),
        "v": (8, 2, 32),
        "pages": (1, 5, 2, 16, 64),
        "block_tables": (3, 3),
        "layer": (),
    }
    shapes |= change
    arrays = {name: jnp.zeros(size, jnp.float32) for name, size in shapes.items()}
    for name in ("block_tables", "layer"):
        arrays[name] = arrays[name].astype(jnp.int32)
    with pytest.raises(ValueError, match=message):
        ragged_paged_attention(**arrays, batch=step([], []).batch(3), sm_scale=1.0)


def test_block_tables_of_floats_are_refused():
    q, k = jnp.zeros((8, 4, 32)), jnp.zeros((8, 2, 32))
    tables = jnp.zeros((3, 3), jnp.float32)
    with pytest.raises(ValueError, match="block_tables is float32, but must be int32"):
        ragged_paged_attention(
            q, k, k, jnp.zeros((1, 5, 2, 16, 64)), tables, step([], []).batch(3), 0, sm_scale=1.0
        )
