# SPDX-License-Identifier: Apache-2.0
"""Plain-JAX Gated DeltaNet mixer: the definition of right, and what serves on the CPU.

Per token and value head, with state S [Dk, Dv] (Yang, Kautz, Hatamizadeh, "Gated Delta Networks",
arXiv 2412.06464, equation 10, in the transposed convention S <- S + k v^T):

    q, k, v = silu(causal depthwise convolution of the projected tokens)
    q, k    = q * rsqrt(sum q^2 + eps) * Dk^-1/2,  k * rsqrt(sum k^2 + eps)
    g       = -exp(a_log) * softplus(a + dt_bias)      log of the decay
    beta    = sigmoid(b)                               write strength
    S       = exp(g) S
    S       = S + k (beta (v - S^T k))^T
    o       = S^T q
    out     = norm * rms_norm(o) * silu(z)

Convolution, gates and norm are vectorised over the rows of the token axis. The delta rule has two
arms, both loops with a dynamic trip count, so that their cost follows the tokens of the step:
- decode: tiles of DECODE_TILE requests, the recurrence above once;
- prefill: the chunks of CHUNK tokens of each request, in the chunked (WY) form.
Chunks are aligned to absolute positions, so a sequence which is cut at any multiple of CHUNK is
computed bit by bit as if it were not cut. All math is float32.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from csrc_pallas.gated_delta_net.types import GdnSlots, GdnWeights
from csrc_pallas.large_arrays import layer_of, tie_to_iteration, write_slices
from csrc_pallas.ragged_batch import RaggedBatch, num_tokens, query_len, token_request
from csrc_pallas.work_items import cdiv, locate, work_items

CHUNK = 64  # tokens
SOLVE_BLOCK = 16  # rows, divides CHUNK
DECODE_TILE = 8  # requests
L2_EPS = 1e-6


def gated_delta_net(
    qkv: jax.Array,
    z: jax.Array,
    a: jax.Array,
    b: jax.Array,
    weights: GdnWeights,
    conv_state: jax.Array,
    recurrent_state: jax.Array,
    batch: RaggedBatch,
    slots: GdnSlots,
    layer: jax.Array,
    *,
    num_key_heads: int,
    rms_eps: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """See `api.gated_delta_net`."""
    rows = qkv.shape[0]
    conv, a_log, dt_bias, norm = layer_of(weights, layer)
    writes = _StateWrites.of(batch, slots, layer)

    old = conv_state.at[layer, slots.read].get(mode="clip")  # [R, W - 1, channels]
    old = jnp.where(slots.has_initial_state[:, None, None], old, 0)
    mixed = jax.nn.silu(causal_conv(qkv, old, conv, batch))
    conv_state = writes.apply(conv_state, next_conv_state(qkv, old, batch))

    value_heads, key_dim, value_dim = recurrent_state.shape[2:]
    q, k, v = jnp.split(mixed, [num_key_heads * key_dim, 2 * num_key_heads * key_dim], axis=1)
    decay = -jnp.exp(a_log.astype(jnp.float32)) * jax.nn.softplus(
        a.astype(jnp.float32) + dt_bias.astype(jnp.float32)
    )
    tokens = Tokens(
        q=l2_norm(q.reshape(rows, num_key_heads, key_dim)) * key_dim**-0.5,
        k=l2_norm(k.reshape(rows, num_key_heads, key_dim)),
        v=v.reshape(rows, value_heads, value_dim),
        log_decay=decay,
        beta=jax.nn.sigmoid(b.astype(jnp.float32)),
    )
    initial = _InitialState(recurrent_state, slots, layer)
    out = jnp.zeros((rows, value_heads, value_dim), jnp.float32)
    new_state = jnp.zeros((slots.write.shape[0], *recurrent_state.shape[2:]), recurrent_state.dtype)
    out, new_state = _decode(tokens, initial, batch, out, new_state)
    out, new_state = _prefill(tokens, initial, batch, out, new_state)
    recurrent_state = writes.apply(recurrent_state, new_state)

    out = gated_rms_norm(out, z.reshape(rows, value_heads, value_dim), norm, rms_eps)
    real = jnp.arange(rows) < num_tokens(batch)
    out = jnp.where(real[:, None], out.reshape(rows, -1), 0.0).astype(qkv.dtype)
    return out, conv_state, recurrent_state


class _StateWrites(NamedTuple):
    """Which requests write their states, and where to."""

    slot: jax.Array  # [R]
    layer: jax.Array  # []
    which: jax.Array  # [R] the requests with new tokens, then any others
    count: jax.Array  # [] number of requests with new tokens

    @classmethod
    def of(cls, batch: RaggedBatch, slots: GdnSlots, layer: jax.Array) -> "_StateWrites":
        active = query_len(batch) > 0
        which = jnp.argsort(~active, stable=True).astype(jnp.int32)
        return cls(slots.write, layer, which, jnp.sum(active, dtype=jnp.int32))

    def apply(self, states: jax.Array, new: jax.Array) -> jax.Array:
        """Writes new [R, ...] into the slots of states [G, slots, ...]."""
        starts = jnp.zeros((self.slot.shape[0], states.ndim), jnp.int32)
        starts = starts.at[:, 0].set(self.layer).at[:, 1].set(self.slot)
        return write_slices(states, new[:, None, None], starts, self.which, self.count)


def causal_conv(qkv: jax.Array, old: jax.Array, weight: jax.Array, batch: RaggedBatch) -> jax.Array:
    """Causal depthwise convolution along each request, float32 [T, channels].

    Args:
        qkv: [T, channels] inputs.
        old: [R, W - 1, channels] the inputs before each request's first row.
        weight: [W, channels], the last tap is the current token's.
        batch: the requests.
    """
    rows, width = qkv.shape[0], weight.shape[0]
    request = jnp.minimum(token_request(batch, rows), old.shape[0] - 1)
    offset = jnp.arange(rows, dtype=jnp.int32) - batch.query_start[request]  # in the request
    padded = jnp.pad(qkv, ((width - 1, 0), (0, 0)))
    weight = weight.astype(jnp.float32)
    out = jnp.zeros(qkv.shape, jnp.float32)
    for tap in range(width - 1):
        back = width - 1 - tap
        before = old[request, jnp.clip(offset + tap, 0, width - 2)]
        inputs = jnp.where((offset >= back)[:, None], padded[tap : tap + rows], before)
        out += inputs.astype(jnp.float32) * weight[tap]
    return out + qkv.astype(jnp.float32) * weight[-1]


def next_conv_state(qkv: jax.Array, old: jax.Array, batch: RaggedBatch) -> jax.Array:
    """The last W - 1 inputs of each request after its new rows, [R, W - 1, channels]."""
    keep = old.shape[1]
    # Row of the request, negative: still one of the old inputs.
    offset = query_len(batch)[:, None] - keep + jnp.arange(keep, dtype=jnp.int32)
    row = jnp.clip(batch.query_start[:-1, None] + offset, 0, qkv.shape[0] - 1)
    before = jnp.take_along_axis(old, jnp.clip(keep + offset, 0, keep - 1)[..., None], axis=1)
    return jnp.where((offset >= 0)[..., None], qkv[row], before)


def l2_norm(x: jax.Array) -> jax.Array:
    """x * rsqrt(sum x^2 + eps) over the last axis."""
    return x * lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + L2_EPS)


def gated_rms_norm(o: jax.Array, z: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """weight * rms_norm(o) * silu(z) over the last axis, float32."""
    normed = o * lax.rsqrt(jnp.mean(o * o, axis=-1, keepdims=True) + eps)
    return weight.astype(jnp.float32) * normed * jax.nn.silu(z.astype(jnp.float32))


class Tokens(NamedTuple):
    """Inputs of the delta rule, float32, any number of rows."""

    q: jax.Array  # [rows, Hk, Dk] normalised, scaled by Dk ** -0.5
    k: jax.Array  # [rows, Hk, Dk] normalised
    v: jax.Array  # [rows, Hv, Dv]
    log_decay: jax.Array  # [rows, Hv] <= 0
    beta: jax.Array  # [rows, Hv]


class _InitialState(NamedTuple):
    """The states before the step; no loop changes them."""

    recurrent_state: jax.Array  # [G, slots, Hv, Dk, Dv]
    slots: GdnSlots
    layer: jax.Array  # []

    def load(self, iteration: jax.Array, request: jax.Array) -> jax.Array:
        """State of the requests, float32 [*request.shape, Hv, Dk, Dv], in a loop's iteration."""
        (states,) = tie_to_iteration(iteration, self.recurrent_state)
        state = states.at[self.layer, self.slots.read[request]].get(mode="clip")
        started = self.slots.has_initial_state[request][..., None, None, None]
        return jnp.where(started, state.astype(jnp.float32), 0.0)


def recurrent_step(tokens: Tokens, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One token of each of S sequences: (o [S, Hv, Dv], new state [S, Hv, Dk, Dv]).

    With u = beta (v - exp(g) S^T k), the new state is exp(g) S + k u^T, so that
    o = exp(g) S^T q + (k . q) u: one product with the old state serves k and q.
    """
    group = tokens.v.shape[1] // tokens.k.shape[1]
    q = jnp.repeat(tokens.q, group, axis=1)  # [S, Hv, Dk]
    k = jnp.repeat(tokens.k, group, axis=1)
    decay = jnp.exp(tokens.log_decay)[..., None]  # [S, Hv, 1]
    recalled = jnp.einsum("shnk,shkv->shnv", jnp.stack([k, q], axis=2), state)
    recalled = decay[..., None] * recalled  # [S, Hv, 2, Dv] by k, by q
    u = tokens.beta[..., None] * (tokens.v - recalled[:, :, 0])
    o = recalled[:, :, 1] + jnp.sum(k * q, axis=-1, keepdims=True) * u
    return o, decay[..., None] * state + k[..., :, None] * u[..., None, :]


def solve_unit_lower(strictly_lower: jax.Array, target: jax.Array) -> jax.Array:
    """Solves (I + strictly_lower) x = target by blocks: [H, rows, rows], [H, rows, N] -> target's.

    All diagonal blocks are inverted together, row by row: forward substitution, which stays exact
    where a Neumann series would not (keys that repeat). LAPACK's solver, called through XLA on the
    CPU, takes 5 to 10 times as long for these sizes.
    """
    rows = strictly_lower.shape[-1]
    starts = range(0, rows, SOLVE_BLOCK)
    eye = jnp.eye(SOLVE_BLOCK, dtype=target.dtype)
    diagonal = jnp.stack(
        [strictly_lower[:, i : i + SOLVE_BLOCK, i : i + SOLVE_BLOCK] for i in starts], axis=1
    )  # [H, blocks, SOLVE_BLOCK, SOLVE_BLOCK]

    def invert_row(i, inverse):
        row = lax.dynamic_slice_in_dim(diagonal, i, 1, axis=2)
        row = lax.dynamic_slice_in_dim(eye, i, 1) - row @ inverse
        return lax.dynamic_update_slice_in_dim(inverse, row, i, axis=2)

    inverse = jnp.broadcast_to(eye, diagonal.shape)
    inverse = lax.fori_loop(1, SOLVE_BLOCK, invert_row, inverse)
    x = inverse[:, 0] @ target[:, :SOLVE_BLOCK]
    for block, i in enumerate(starts[1:], start=1):
        here = slice(i, i + SOLVE_BLOCK)
        rest = target[:, here] - strictly_lower[:, here, :i] @ x
        x = jnp.concatenate([x, inverse[:, block] @ rest], axis=1)
    return x


def chunk_step(tokens: Tokens, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """CHUNK consecutive tokens of one sequence: (o [CHUNK, Hv, Dv], new state [Hv, Dk, Dv]).

    A row with k = q = v = log_decay = beta = 0 changes nothing. The WY form (section 3.3 of the
    paper): the writes u of all tokens solve one unit lower triangular system,

        (I + A) u = beta (v - exp(c) S^T k),  A[i, j] = beta_i exp(c_i - c_j) k_i . k_j for j < i,

    where c is the cumulative log decay; then

        o  = exp(c) S^T q + tril(exp(c_i - c_j) q_i . k_j) u
        S' = exp(c_last) S + sum_j exp(c_last - c_j) k_j u_j^T
    """
    rows, value_heads, _ = tokens.v.shape
    group = value_heads // tokens.k.shape[1]
    q, k = (x.transpose(1, 0, 2) for x in (tokens.q, tokens.k))  # [Hk, rows, Dk]
    v = tokens.v.transpose(1, 0, 2)  # [Hv, rows, Dv]
    beta = tokens.beta.T[..., None]  # [Hv, rows, 1]
    kk = jnp.repeat(jnp.einsum("hid,hjd->hij", k, k), group, axis=0)  # [Hv, rows, rows]
    qk = jnp.repeat(jnp.einsum("hid,hjd->hij", q, k), group, axis=0)
    q, k = jnp.repeat(q, group, axis=0), jnp.repeat(k, group, axis=0)

    # c_i - c_j as a sum of the decays in between, not as a difference of two cumulative sums: that
    # would lose the small decays which follow large ones.
    index = jnp.arange(rows)
    lower = index[:, None] > index[None, :]
    not_upper = index[:, None] >= index[None, :]
    decays = tokens.log_decay.T  # [Hv, rows]
    between = jnp.einsum(
        "il,hlj->hij", not_upper.astype(jnp.float32), jnp.where(lower, decays[..., None], 0.0)
    )
    pair = jnp.exp(jnp.where(not_upper, between, -jnp.inf))  # [Hv, rows, rows]
    since_start = jnp.exp(between[..., 0] + decays[:, :1])[..., None]  # [Hv, rows, 1] exp(c)
    until_end = jnp.exp(between[:, -1])[..., None]  # [Hv, rows, 1] exp(c_last - c)

    system = jnp.where(lower, beta * kk * pair, 0.0)
    target = beta * (v - since_start * (k @ state))
    u = solve_unit_lower(system, target)
    o = since_start * (q @ state) + (qk * pair) @ u
    state = since_start[:, -1:] * state + jnp.einsum("hrk,hrv->hkv", k * until_end, u)
    return o.transpose(1, 0, 2), state


def _decode(
    tokens: Tokens,
    initial: _InitialState,
    batch: RaggedBatch,
    out: jax.Array,
    new_state: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Requests [0, num_decodes): fills their rows of `out` and `new_state`.

    out is [T, Hv, Dv], new_state [R, Hv, Dk, Dv].
    """
    rows = min(tokens.v.shape[0], new_state.shape[0])
    tile = min(DECODE_TILE, rows)

    def body(i, carry):
        out, new_state = carry
        # The last tile starts earlier rather than run past the end: rows done twice come out equal.
        start = jnp.minimum(i * tile, rows - tile)
        part = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, tile), tokens)
        o, state = recurrent_step(part, initial.load(i, start + jnp.arange(tile)))
        out = lax.dynamic_update_slice_in_dim(out, o, start, 0)
        state = state.astype(new_state.dtype)
        return out, lax.dynamic_update_slice_in_dim(new_state, state, start, 0)

    return lax.fori_loop(0, cdiv(batch.num_decodes, tile), body, (out, new_state))


def _prefill(
    tokens: Tokens,
    initial: _InitialState,
    batch: RaggedBatch,
    out: jax.Array,
    new_state: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Requests [num_decodes, num_requests): fills their rows of `out` and `new_state`."""
    num_rows = out.shape[0]
    request = jnp.arange(new_state.shape[0], dtype=jnp.int32)
    length = jnp.where(request >= batch.num_decodes, query_len(batch), 0)
    lead = batch.context_len % CHUNK  # places of the first chunk that earlier steps have filled
    items = work_items(jnp.where(length > 0, cdiv(lead + length, CHUNK), 0))

    def body(i, carry):
        state, out, new_state = carry
        request, chunk = locate(items, i)
        # Of the chunk's places in the request: the first chunk may start before its first new row.
        offset = chunk * CHUNK - lead[request] + jnp.arange(CHUNK, dtype=jnp.int32)
        valid = (offset >= 0) & (offset < length[request])
        row = jnp.where(valid, batch.query_start[request] + offset, num_rows)
        part = jax.tree.map(lambda x: x.at[row].get(mode="fill", fill_value=0), tokens)
        state = jnp.where(chunk == 0, initial.load(i, request), state)
        o, state = chunk_step(part, state)
        out = out.at[row].set(o, mode="drop")
        new_state = lax.dynamic_update_slice_in_dim(
            new_state, state.astype(new_state.dtype)[None], request, 0
        )
        return state, out, new_state

    state = jnp.zeros(new_state.shape[1:], jnp.float32)
    _, out, new_state = lax.fori_loop(0, items.total, body, (state, out, new_state))
    return out, new_state
