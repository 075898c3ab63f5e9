# SPDX-License-Identifier: Apache-2.0
"""What the kernels must compute, one token at a time in numpy float64."""

import numpy as np


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, sm_scale: float) -> np.ndarray:
    """Causal attention of the last queries of one sequence.

    q [N, Hq, D] belong to the last N of the L positions of k, v [L, Hkv, D]. Returns [N, Hq, D].
    """
    queries, query_heads, _ = q.shape
    length, kv_heads, _ = k.shape
    group = query_heads // kv_heads
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("nhd,lhd->hnl", q, k) * sm_scale
    position = length - queries + np.arange(queries)
    scores = np.where(np.arange(length) <= position[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hnl,lhd->nhd", weights, v)


def delta_rule(q, k, v, log_decay, beta, state):
    """The gated delta rule (arXiv 2412.06464, equation 10), token by token.

    q, k [N, Hv, Dk], v [N, Hv, Dv], log_decay, beta [N, Hv], state [Hv, Dk, Dv].
    Returns (o [N, Hv, Dv], the state after the last token).
    """
    out = np.zeros(v.shape)
    for t in range(len(v)):
        state = state * np.exp(log_decay[t])[:, None, None]
        write = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state = state + k[t][:, :, None] * write[:, None, :]
        out[t] = np.einsum("hkv,hk->hv", state, q[t])
    return out, state


def gated_delta_net(
    qkv, z, a, b, conv, a_log, dt_bias, norm, conv_state, state, *, num_key_heads, rms_eps
):
    """The whole mixer for one sequence of N tokens and one layer's weights.

    Returns (out [N, Hv * Dv], conv_state [W - 1, channels], state [Hv, Dk, Dv]).
    """
    qkv, z, a, b, conv, a_log, dt_bias, norm, conv_state, state = (
        np.asarray(x, np.float64)
        for x in (qkv, z, a, b, conv, a_log, dt_bias, norm, conv_state, state)
    )
    tokens, width = len(qkv), len(conv)
    value_heads, key_dim, value_dim = state.shape
    inputs = np.concatenate([conv_state, qkv])  # [W - 1 + N, channels]
    mixed = _silu(sum(inputs[tap : tap + tokens] * conv[tap] for tap in range(width)))
    q, k, v = np.split(mixed, [num_key_heads * key_dim, 2 * num_key_heads * key_dim], axis=1)
    group = value_heads // num_key_heads
    q, k = (
        np.repeat(_l2_norm(x.reshape(tokens, num_key_heads, key_dim)), group, axis=1)
        for x in (q, k)
    )
    o, state = delta_rule(
        q * key_dim**-0.5,
        k,
        v.reshape(tokens, value_heads, value_dim),
        -np.exp(a_log) * np.logaddexp(0.0, a + dt_bias),
        _sigmoid(b),
        state,
    )
    o = o / np.sqrt(np.mean(o * o, axis=-1, keepdims=True) + rms_eps)
    out = norm * o * _silu(z.reshape(o.shape))
    return out.reshape(tokens, -1), inputs[tokens:], state


def experts(x, expert_ids, expert_weights, gate_up, down):
    """Routed experts of one layer: x [N, D], gate_up [E, D, 2F], down [E, F, D]. Returns [N, D]."""
    x, expert_weights, gate_up, down = (
        np.asarray(y, np.float64) for y in (x, expert_weights, gate_up, down)
    )
    intermediate = down.shape[1]
    out = np.zeros(x.shape)
    for t in range(len(x)):
        for expert, weight in zip(expert_ids[t], expert_weights[t], strict=True):
            h = x[t] @ gate_up[expert]
            h = _silu(h[:intermediate]) * h[intermediate:]
            out[t] += weight * (h @ down[expert])
    return out


def relative_error(actual, expected, floor: float = 1e-12) -> float:
    """RMS of the difference over RMS of what is expected (at least `floor`); 0 if empty."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    if not expected.size:
        return 0.0
    scale = max(np.sqrt(np.mean(expected**2)), floor)
    return float(np.sqrt(np.mean((actual - expected) ** 2)) / scale)


def same_bytes(actual, expected) -> bool:
    """Equal bit by bit, NaN and sign of zero included."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    return actual.tobytes() == expected.tobytes()


def _sigmoid(x):
    return np.exp(-np.logaddexp(0.0, -x))


def _silu(x):
    return x * _sigmoid(x)


def _l2_norm(x):
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + 1e-6)
