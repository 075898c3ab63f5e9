# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  registers bfloat16 with numpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csrc_pallas.gated_delta_net import GdnSlots, GdnWeights, gated_delta_net
from csrc_pallas.gated_delta_net.reference import CHUNK
from tests.kernels import oracles
from tests.kernels.gdn_pool import Pool, Shape, Tokens, make_slots, program
from tests.kernels.ragged import Step, step, steps

SHAPES = [
    Shape(key_heads=2, value_heads=4, key_dim=16, value_dim=32),
    Shape(key_heads=1, value_heads=4, key_dim=32, value_dim=8, width=2),
    Shape(key_heads=3, value_heads=3, key_dim=64, value_dim=40, width=3),
    Shape(2, 2, 32, 32, dtype="bfloat16", state_dtype="bfloat16"),
]
# Against float64: float32 math; and an output, and states, that are rounded to bf16 (8 bits).
TOLERANCE = {"float32": 3e-6, "bfloat16": 4e-3}


def output_error(actual, expected) -> float:
    return oracles.relative_error(actual, expected, floor=0.1)


def check(shape: Shape, work: Step, *, layer: int = 1, seed: int = 0) -> None:
    """One step on random slots: outputs, written slots, and every other byte of the pool."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(shape.slots).tolist()
    read = [order.pop() if request.context else None for request in work.requests]
    write = [
        slot if slot is not None and rng.integers(2) else order.pop() for slot in read
    ]  # in place, or elsewhere
    pool = Pool.of(shape, rng, [slot for slot in read if slot is not None], layer)
    tokens = Tokens.random(shape, work.num_tokens, rng)
    out, after = pool.run(tokens, work, make_slots(shape, read, write), layer)

    written = np.zeros(shape.slots, bool)
    for r, (request, rows) in enumerate(zip(work.requests, work.rows(), strict=True)):
        if not request.new:
            continue
        expected, conv_state, state = pool.expect(tokens[rows], read[r], layer)
        assert output_error(out[rows], expected) < TOLERANCE[shape.dtype]
        assert oracles.same_bytes(after.conv_state[layer, write[r]], conv_state.astype(shape.dtype))
        error = oracles.relative_error(after.recurrent_state[layer, write[r]], state)
        assert error < TOLERANCE[shape.state_dtype]
        written[write[r]] = True
    assert out.dtype == np.dtype(shape.dtype)
    assert not out[work.num_tokens :].any(), "padding rows must be zero"
    for before, now in (
        (pool.conv_state, after.conv_state),
        (pool.recurrent_state, after.recurrent_state),
    ):
        assert oracles.same_bytes(now[1 - layer], before[1 - layer])
        assert oracles.same_bytes(now[layer, ~written], before[layer, ~written])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_mix_of_requests_follows_the_recurrence(shape, data):
    lengths = [0, 1, 2, 3, 4, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5]
    work = data.draw(
        steps(
            max_tokens=shape.max_tokens,
            max_requests=shape.max_requests,
            contexts=[*lengths, 65_540],
            news=lengths,
        )
    )
    check(shape, work, layer=data.draw(st.integers(0, 1)), seed=data.draw(st.integers(0, 99)))


@pytest.mark.parametrize(
    "work",
    [
        step([], []),
        step([0], []),
        step([0, 300, 64, 63, 1, 128], []),
        step([], [(0, 200)]),
        step([], [(33, 1), (0, 0), (127, 3), (63, 66)]),
        step([5, 31], [(7, 0)]),
        step([47], [(48, 64), (0, 65), (1, 1)]),
    ],
    ids=["empty", "first-token", "decodes", "prefill", "odd-prefills", "idle", "mixed"],
)
def test_steps_with_only_some_kinds_of_requests(work):
    check(SHAPES[0], work)


def test_fewer_token_rows_than_requests():
    check(Shape(1, 2, 8, 8, max_tokens=2), step([17, 5], []))


def test_one_program_serves_every_step_of_a_shape():
    shape = SHAPES[0]
    check(shape, step([3, 200], []))
    compiled = program(shape.key_heads)._cache_size()
    for work in (step([], [(0, 100)]), step([1], [(400, 3)]), step([], [])):
        check(shape, work, layer=0)
    assert program(shape.key_heads)._cache_size() == compiled


def play(pool: Pool, tokens: Tokens, pieces: list[int], *, decode_single: bool = False):
    """Runs one sequence in steps of the given lengths, from slot to slot: (out, final pool)."""
    outs, position, slot = [], 0, None
    for i, new in enumerate(pieces):
        alone = decode_single and new == 1
        work = step([position], []) if alone else step([], [(position, new)])
        slots = make_slots(pool.shape, [slot], [i % 3])
        part = tokens[slice(position, position + new)]
        out, pool = pool.run(part, work, slots, layer=0)
        outs.append(out[:new])
        position, slot = position + new, i % 3
    return np.concatenate(outs), pool.conv_state[0, slot], pool.recurrent_state[0, slot]


@pytest.mark.parametrize(
    ("whole", "cut"),
    [
        ([200], [64, 136]),
        ([200], [128, 72]),
        ([200], [64, 64, 64, 8]),
        ([10, 190], [10, 54, 136]),
        ([70, 130], [70, 58, 64, 8]),
    ],
    ids=str,
)
def test_a_cut_at_a_multiple_of_the_chunk_changes_no_bit(whole, cut):
    """Chunks sit at absolute positions, also in a request that starts between two multiples."""
    rng = np.random.default_rng(1)
    shape = SHAPES[0]
    pool, tokens = Pool.of(shape, rng, [], 0), Tokens.random(shape, 200, rng)
    for x, y in zip(play(pool, tokens, whole), play(pool, tokens, cut), strict=True):
        assert oracles.same_bytes(y, x)


@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_a_cut_anywhere_changes_only_the_rounding(data):
    rng = np.random.default_rng(2)
    shape = SHAPES[0]
    pool, tokens = Pool.of(shape, rng, [], 0), Tokens.random(shape, 200, rng)
    pieces, left = [], 200
    while left:
        lengths = [n for n in (1, 2, 3, 63, 64, 65, 100) if n <= left]
        pieces.append(data.draw(st.sampled_from(lengths)) if len(pieces) < 6 else left)
        left -= pieces[-1]
    once = play(pool, tokens, [200])
    for whole, cut in zip(once, play(pool, tokens, pieces, decode_single=True), strict=True):
        assert oracles.relative_error(cut, whole) < 2e-6


@pytest.mark.parametrize("prompt", [1, 2, 63, 64, 65, 190])
def test_decode_continues_from_the_state_that_prefill_wrote(prompt):
    """Acceptance row A5."""
    rng = np.random.default_rng(prompt)
    shape = SHAPES[0]
    pool, tokens = Pool.of(shape, rng, [], 0), Tokens.random(shape, prompt + 5, rng)
    out, conv_state, state = play(pool, tokens, [prompt, 1, 1, 1, 1, 1], decode_single=True)
    expected, expected_conv, expected_state = pool.expect(tokens, None, 0)
    assert output_error(out, expected) < TOLERANCE["float32"]
    assert oracles.same_bytes(conv_state, expected_conv.astype(np.float32))
    assert oracles.relative_error(state, expected_state) < TOLERANCE["float32"]


def test_a_request_may_write_the_slot_that_another_reads():
    """Reads come before writes, for all requests and both arms."""
    rng = np.random.default_rng(5)
    shape = SHAPES[0]
    pool = Pool.of(shape, rng, [0, 1, 2, 3], 0)
    work = step([9, 9], [(64, 70), (3, 1)])
    tokens = Tokens.random(shape, work.num_tokens, rng)
    read, write = [0, 1, 2, 3], [3, 0, 1, 2]
    out, after = pool.run(tokens, work, make_slots(shape, read, write), 0)
    for r, rows in enumerate(work.rows()):
        expected, _, state = pool.expect(tokens[rows], read[r], 0)
        assert output_error(out[rows], expected) < TOLERANCE["float32"]
        error = oracles.relative_error(after.recurrent_state[0, write[r]], state)
        assert error < TOLERANCE["float32"]


def test_a_result_does_not_depend_on_the_rest_of_the_batch():
    rng = np.random.default_rng(6)
    shape = SHAPES[0]
    read = [4, 7, None, 9]
    pool = Pool.of(shape, rng, [4, 7, 9], 0)
    work = step([9, 300], [(0, 70), (130, 5)])
    tokens = Tokens.random(shape, work.num_tokens, rng)
    out, after = pool.run(tokens, work, make_slots(shape, read, [0, 1, 2, 3]), 0)
    for r, (request, rows) in enumerate(zip(work.requests, work.rows(), strict=True)):
        solo = Step([request], int(r < work.num_decodes))
        alone, pool_alone = pool.run(tokens[rows], solo, make_slots(shape, [read[r]], [r]), 0)
        assert oracles.same_bytes(alone[: request.new], out[rows])
        assert oracles.same_bytes(pool_alone.recurrent_state[0, r], after.recurrent_state[0, r])


def adversarial(gates: str, keys: str, shape: Shape, rng: np.random.Generator):
    """Tokens at the edges of the delta rule: writes of full strength, keys that repeat."""
    tokens = Tokens.random(shape, 150, rng)
    tokens.b[:] = 100.0  # beta = 1 in float32
    if keys == "same":
        width = shape.key_heads * shape.key_dim
        tokens.qkv[:, width : 2 * width] = tokens.qkv[:1, width : 2 * width]
    # With a_log = dt_bias = 0 the log decay is -softplus(a).
    decay = {
        "none": np.full(150, -1e4),
        "all": np.full(150, 50.0),
        "alternating": np.where(np.arange(150) % 2, 50.0, -1e4),
        "strong-then-weak": np.where(np.arange(150) < 40, 50.0, -3.0),
    }[gates]
    tokens.a[:] = decay[:, None]
    return tokens


@pytest.mark.parametrize("keys", ["same", "random"])
@pytest.mark.parametrize("gates", ["none", "all", "alternating", "strong-then-weak"])
def test_the_delta_rule_stays_exact_at_its_edges(gates, keys):
    rng = np.random.default_rng(7)
    shape = SHAPES[0]
    pool = Pool.of(shape, rng, [3], 0)
    conv = np.zeros_like(pool.weights.conv)
    conv[:, -1] = 1.0  # keys that repeat at the input repeat after the convolution
    zeros = np.zeros_like(pool.weights.a_log)
    pool.weights = pool.weights._replace(conv=conv, a_log=zeros, dt_bias=zeros)
    tokens = adversarial(gates, keys, shape, rng)
    expected, _, expected_state = pool.expect(tokens, 3, 0)

    out, after = pool.run(tokens, step([], [(70, 150)]), make_slots(shape, [3], [3]), 0)
    assert output_error(out[:150], expected) < 1e-6
    assert oracles.relative_error(after.recurrent_state[0, 3], expected_state) < 1e-6


def test_the_error_does_not_grow_over_long_text():
    """Acceptance row A7: 4,000 tokens in steps of 200, all as close to float64."""
    rng = np.random.default_rng(8)
    shape = SHAPES[0]
    pool, tokens = Pool.of(shape, rng, [], 0), Tokens.random(shape, 4_000, rng)
    out, _, _ = play(pool, tokens, [200] * 20)
    expected, _, _ = pool.expect(tokens, None, 0)
    for thousand in range(4):
        rows = slice(1_000 * thousand, 1_000 * (thousand + 1))
        assert output_error(out[rows], expected[rows]) < TOLERANCE["float32"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qkv": (9, 63)}, r"qkv has shape \(9, 63\), but must be .* = \(9, 64\)"),
        ({"z": (9, 16)}, "z has shape"),
        ({"a": (9, 2)}, "a has shape"),
        ({"b": (8, 4)}, "b has shape"),
        ({"conv": (2, 4, 63)}, "weights.conv has shape"),
        ({"conv": (2, 1, 64)}, "width 1, but must have at least 2 taps"),
        ({"norm": (2, 4)}, "weights.norm has shape"),
        ({"conv_state": (2, 5, 4, 64)}, "conv_state has shape"),
        ({"recurrent_state": (2, 5, 3, 8, 8)}, "value heads = 3 must be a positive multiple"),
        ({"read": (2,)}, "slots.read has shape"),
    ],
)
def test_arguments_that_do_not_fit_are_named(change, message):
    shapes = {
        "qkv": (9, 64),
        "z": (9, 32),
        "a": (9, 4),
        "b": (9, 4),
        "conv": (2, 4, 64),
        "a_log": (2, 4),
        "dt_bias": (2, 4),
        "norm": (2, 8),
        "conv_state": (2, 5, 3, 64),
        "recurrent_state": (2, 5, 4, 8, 8),
        "read": (3,),
    }
    shapes |= change
    x = {name: jnp.zeros(size, jnp.float32) for name, size in shapes.items()}
    slots = GdnSlots(x["read"].astype(jnp.int32), jnp.zeros(3, jnp.int32), jnp.zeros(3, bool))
    with pytest.raises(ValueError, match=message):
        gated_delta_net(
            x["qkv"],
            x["z"],
            x["a"],
            x["b"],
            GdnWeights(x["conv"], x["a_log"], x["dt_bias"], x["norm"]),
            x["conv_state"],
            x["recurrent_state"],
            step([], []).batch(3),
            slots,
            0,
            num_key_heads=2,
            rms_eps=1e-6,
        )
