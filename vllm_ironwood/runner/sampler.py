# SPDX-License-Identifier: Apache-2.0
"""Sampling on the device: greedy or temperature, min-p, top-k and top-p; logprobs of the choice."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from csrc_pallas.row_argmax.api import row_argmax

# vLLM treats a temperature below this as greedy (its sampling parameters' own threshold).
GREEDY_BELOW = 1e-5
# Passes over the logits that find the smallest one kept by top-k, or by top-p.
THRESHOLD_BITS = 32


class SamplingInputs(NamedTuple):
    """One row per request (``R`` rows)."""

    temperature: jax.Array  # [R] float32; < 1e-5: greedy
    top_k: jax.Array  # [R] int32; 0: all
    top_p: jax.Array  # [R] float32 in (0, 1]
    min_p: jax.Array  # [R] float32 in [0, 1]; 0: no limit
    seed: jax.Array  # [R] uint32: the request's random stream
    position: jax.Array  # [R] int32: of the token being sampled: the stream's counter


class Logprobs(NamedTuple):
    """Of the sampled token, then of the most likely ones (``K`` of them)."""

    token_ids: jax.Array  # [R, 1 + K] int32
    logprobs: jax.Array  # [R, 1 + K] float32
    ranks: jax.Array  # [R] int32, 1 = most likely


def sample(logits: jax.Array, inputs: SamplingInputs) -> tuple[jax.Array, jax.Array]:
    """Draw one token per row.

    A draw depends on the row's logits, seed and position alone: not on the batch, the
    bucket, or how the prompt was cut into steps.

    Args:
        logits: ``[R, V]`` float32.

    Returns:
        ``[R]`` int32 token ids, and what they were drawn from: ``[R, V]`` logits after
        temperature, -inf where a limit left a token out; of a greedy row as they were given.
    """
    greedy = row_argmax(logits)
    is_greedy = inputs.temperature < GREEDY_BELOW

    def draw(_) -> tuple[jax.Array, jax.Array]:
        temperature = jnp.where(is_greedy, 1.0, inputs.temperature)
        scaled = logits / temperature[:, None]
        likely = _keep_min_p(scaled, inputs.min_p)
        kept = _keep_top_k_top_p(likely, inputs.top_k, inputs.top_p)
        drawn = jnp.argmax(kept + _gumbel(inputs, logits.shape[-1]), axis=-1)
        tokens = jnp.where(is_greedy, greedy, drawn.astype(jnp.int32))
        return tokens, jnp.where(is_greedy[:, None], logits, kept)

    # A batch of greedy requests pays for no sort and no random numbers.
    return lax.cond(jnp.all(is_greedy), lambda _: (greedy, logits), draw, None)


def _keep_min_p(logits: jax.Array, min_p: jax.Array) -> jax.Array:
    """Set what is less than ``min_p`` times as likely as the likeliest token to -inf.

    (Nguyen et al. 2024, arXiv 2407.01082.)
    """
    least = jnp.max(logits, axis=-1) + jnp.log(min_p)
    return jnp.where(logits >= least[:, None], logits, -jnp.inf)


def _keep_top_k_top_p(logits: jax.Array, top_k: jax.Array, top_p: jax.Array) -> jax.Array:
    """Set what top-k, then top-p, leave out to -inf.

    Top-p keeps the smallest set of most likely tokens whose probability, renormalised
    after top-k, reaches ``top_p`` (nucleus sampling, Holtzman et al. 2020, arXiv 1904.09751).
    Tokens as likely as the last one kept stay, of both.
    """
    vocab = logits.shape[-1]
    limits_k = (top_k > 0) & (top_k < vocab)
    limits_p = top_p < 1.0

    def keep_top_k(logits: jax.Array) -> jax.Array:
        enough = jnp.where(limits_k, top_k, vocab).astype(jnp.float32)
        return _keep_until(logits, jnp.ones_like, enough, limits_k)

    def keep_top_p(logits: jax.Array) -> jax.Array:
        log_mass = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        return _keep_until(logits, lambda x: jnp.exp(x - log_mass), top_p, limits_p)

    logits = lax.cond(jnp.any(limits_k), keep_top_k, lambda x: x, logits)
    return lax.cond(jnp.any(limits_p), keep_top_p, lambda x: x, logits)


def _keep_until(
    logits: jax.Array,
    weight_of: Callable[[jax.Array], jax.Array],
    enough: jax.Array,
    limited: jax.Array,
) -> jax.Array:
    """Keep the largest logits of each row until their weights add up to ``enough``.

    The smallest one kept is found by bisection over the 32 bits of a float: 32 passes over the
    row, where a sort of a large vocabulary takes several times as long on a TPU.
    """

    def narrow(bit: jax.Array, threshold: jax.Array) -> jax.Array:
        higher = threshold + (jnp.uint32(1) << (THRESHOLD_BITS - 1 - bit).astype(jnp.uint32))
        # Computed anew in each pass: reading the logits is all that a pass costs.
        counted = jnp.where(_ordered(logits) >= higher[:, None], weight_of(logits), 0.0)
        weight = jnp.sum(counted, axis=-1)
        return jnp.where(weight >= enough, higher, threshold)

    threshold = lax.fori_loop(0, THRESHOLD_BITS, narrow, jnp.zeros(logits.shape[0], jnp.uint32))
    kept = (_ordered(logits) >= threshold[:, None]) | ~limited[:, None]
    return jnp.where(kept, logits, -jnp.inf)


def _ordered(x: jax.Array) -> jax.Array:
    """uint32 in the order of the float32 values: negative ones reversed, below the others."""
    bits = lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.uint32)  # -0 equals 0
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits & sign != 0, ~bits, bits | sign)


def _gumbel(inputs: SamplingInputs, vocab: int) -> jax.Array:
    """``[R, V]`` Gumbel noise: ``argmax(logits + noise)`` draws from ``softmax(logits)``.

    (Gumbel-max; Maddison et al. 2014, arXiv 1411.0030.)
    """

    def one(seed: jax.Array, position: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(seed), position)
        return jax.random.gumbel(key, (vocab,), jnp.float32)

    return jax.vmap(one)(inputs.seed, inputs.position)


def top_logprobs(scores: jax.Array, chosen: jax.Array, num: int) -> Logprobs:
    """The chosen token's score and rank, and the highest scores.

    Args:
        scores: ``[R, V]`` float32, log-probabilities or logits.
        chosen: ``[R]`` int32.
        num: how many of the highest to report.
    """
    of_chosen = jnp.take_along_axis(scores, chosen[:, None], axis=-1)
    values, ids = lax.top_k(scores, min(num, scores.shape[-1]))
    return Logprobs(
        token_ids=jnp.concatenate([chosen[:, None], ids.astype(jnp.int32)], axis=-1),
        logprobs=jnp.concatenate([of_chosen, values], axis=-1),
        ranks=jnp.sum(scores > of_chosen, axis=-1).astype(jnp.int32) + 1,
    )
