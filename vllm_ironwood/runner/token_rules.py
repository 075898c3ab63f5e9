# SPDX-License-Identifier: Apache-2.0
"""What a request forbids, favours or penalises among tokens: tables on the device, a row each.

Penalties count what a request generated, and with asynchronous scheduling the host does not
know the last token yet; so counts and recent tokens live on the device and every step updates
them there. A row is written when its request is admitted or resumes, and only if the request
asks for any of it: others pay nothing. Tokens whose logprobs a request asks for by id stand in
its row too, so that they are sent once and not with every step.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from vllm.sampling_params import SamplingParams

from vllm_ironwood.runner.limits import (
    LONGEST_BAD_WORD,
    MOST_BAD_WORDS,
    MOST_LOGPROB_TOKEN_IDS,
)
from vllm_ironwood.runner.thinking_budget import (
    ReasoningMarkers,
    ThinkingRows,
    count_token,
    force_end,
    no_rows,
    thinking_row,
)

Rows = TypeVar("Rows", bound=NamedTuple)

_IN_PROMPT, _IS_STOP = 1, 2
_ANY_TOKEN = -1  # in a bad word's unused front: matches whatever was generated
_NO_TOKEN = -2  # in `recent`, where nothing was generated yet: matches no token


class RuleTables(NamedTuple):
    """``N`` request rows and a scratch row, ``V`` tokens, ``B`` bad words of ``W`` + 1 tokens.

    The same tuple without the first axis is what one request's row is set to.
    """

    bias: jax.Array | np.ndarray  # [N + 1, V] float32 added to the logits; -inf: not allowed
    flags: jax.Array | np.ndarray  # [N + 1, V] uint8: 1 = in the prompt, 2 = stops the request
    counts: jax.Array | np.ndarray  # [N + 1, V] int32: how often it was generated
    recent: jax.Array | np.ndarray  # [N + 1, W] int32 last generated tokens, the newest last
    bad_words: jax.Array | np.ndarray  # [N + 1, B, W + 1] int32, right-aligned
    logprob_ids: jax.Array | np.ndarray  # [N + 1, 128] int32 tokens to report on; unused: 0
    thinking: ThinkingRows


class RuleInputs(NamedTuple):
    """A step's scalars, a row per request of the step (``R`` rows)."""

    row: jax.Array  # [R] int32 row of the tables; padding: the scratch row
    in_use: jax.Array  # [R] bool: the row of the tables was set for this request
    bar_stops: jax.Array  # [R] bool: too short to stop yet (min_tokens)
    presence_penalty: jax.Array  # [R] float32
    frequency_penalty: jax.Array  # [R] float32
    repetition_penalty: jax.Array  # [R] float32


def empty_tables(max_requests: int, vocab: int) -> RuleTables:
    rows = max_requests + 1
    return RuleTables(
        bias=jnp.zeros((rows, vocab), jnp.float32),
        flags=jnp.zeros((rows, vocab), jnp.uint8),
        counts=jnp.zeros((rows, vocab), jnp.int32),
        recent=jnp.full((rows, LONGEST_BAD_WORD - 1), _NO_TOKEN, jnp.int32),
        bad_words=jnp.full((rows, MOST_BAD_WORDS, LONGEST_BAD_WORD), _ANY_TOKEN, jnp.int32),
        logprob_ids=jnp.zeros((rows, MOST_LOGPROB_TOKEN_IDS), jnp.int32),
        thinking=no_rows(rows),
    )


def asks_for_rules(params: SamplingParams) -> bool:
    """Whether a request needs a row at all."""
    return bool(
        params.presence_penalty
        or params.frequency_penalty
        or params.repetition_penalty != 1.0
        or params.logit_bias
        or params.allowed_token_ids is not None
        or params.bad_words_token_ids
        or params.min_tokens
        or params.logprob_token_ids
        or params.thinking_token_budget is not None
    )


def rules_of(
    params: SamplingParams,
    prompt: Sequence[int],
    generated: Sequence[int],
    vocab: int,
    markers: ReasoningMarkers | None = None,
) -> RuleTables:
    """The row of a request that has generated these tokens so far.

    Args:
        markers: of the engine's reasoning; without them there is no thinking budget.
    """
    bias = np.zeros(vocab, np.float32)
    if params.allowed_token_ids is not None:
        bias[:] = -np.inf
        bias[list(params.allowed_token_ids)] = 0.0
    for token, value in (params.logit_bias or {}).items():
        bias[token] += value
    flags = np.zeros(vocab, np.uint8)
    flags[np.asarray(prompt, np.int64)] |= _IN_PROMPT
    flags[list(params.all_stop_token_ids)] |= _IS_STOP
    past = np.asarray(generated, np.int64)
    recent = np.full(LONGEST_BAD_WORD - 1, _NO_TOKEN, np.int32)
    tail = past[-len(recent) :]
    recent[len(recent) - len(tail) :] = tail
    bad_words = np.full((MOST_BAD_WORDS, LONGEST_BAD_WORD), _ANY_TOKEN, np.int32)
    for i, word in enumerate(params.bad_words_token_ids or ()):
        bad_words[i, LONGEST_BAD_WORD - len(word) :] = word
    counts = np.bincount(past, minlength=vocab).astype(np.int32)
    logprob_ids = np.zeros(MOST_LOGPROB_TOKEN_IDS, np.int32)
    asked = params.logprob_token_ids or ()
    logprob_ids[: len(asked)] = asked
    tokens = np.concatenate([np.asarray(prompt, np.int32), np.asarray(generated, np.int32)])
    thinking = thinking_row(params.thinking_token_budget, markers, tokens)
    return RuleTables(bias, flags, counts, recent, bad_words, logprob_ids, thinking)


def set_row(tables: Rows, row: jax.Array, rules: Rows) -> Rows:
    """``tables`` with the rows ``row`` (a scalar, or ``[R]``) replaced."""
    return jax.tree.map(lambda table, new: table.at[row].set(new), tables, rules)


def apply_rules(logits: jax.Array, tables: RuleTables, inputs: RuleInputs) -> jax.Array:
    """The logits that sampling starts from; those of requests without rules are unchanged.

    The penalties are those of OpenAI's API (presence, frequency; over what was generated) and
    of Keskar et al. 2019, arXiv 1909.05858, section 4.1 (repetition; over the prompt too).

    Args:
        logits: float32 ``[R, V]``, -inf where a grammar bars a token.

    Returns:
        float32 ``[R, V]``, -inf where a token is barred.
    """

    def ruled(logits: jax.Array) -> jax.Array:
        counts, flags = tables.counts[inputs.row], tables.flags[inputs.row]
        generated = counts > 0
        x = logits + tables.bias[inputs.row]
        x = _bar_bad_words(x, tables.recent[inputs.row], tables.bad_words[inputs.row])
        x = _bar_stops(x, flags & _IS_STOP != 0, inputs.bar_stops)
        repetition = inputs.repetition_penalty[:, None]
        repeated = generated | (flags & _IN_PROMPT != 0)
        x = jnp.where(repeated, jnp.where(x > 0, x / repetition, x * repetition), x)
        x -= inputs.frequency_penalty[:, None] * counts
        x -= inputs.presence_penalty[:, None] * generated
        thinking = jax.tree.map(lambda table: table[inputs.row], tables.thinking)
        x = force_end(x, thinking, logits > -jnp.inf)
        return jnp.where(inputs.in_use[:, None], x, logits)

    return jax.lax.cond(jnp.any(inputs.in_use), ruled, lambda x: x, logits)


def count_sampled(
    tables: RuleTables, inputs: RuleInputs, sampled: jax.Array, was_sampled: jax.Array
) -> RuleTables:
    """The tables after a step generated ``sampled`` (``[R]`` int32) where ``was_sampled``."""
    scratch = tables.counts.shape[0] - 1
    row = jnp.where(inputs.in_use & was_sampled, inputs.row, scratch)
    shifted = jnp.concatenate([tables.recent[row, 1:], sampled[:, None]], axis=1)
    thinking = count_token(jax.tree.map(lambda table: table[row], tables.thinking), sampled)
    return tables._replace(
        counts=tables.counts.at[row, sampled].add(1),
        recent=tables.recent.at[row].set(shifted),
        thinking=set_row(tables.thinking, row, thinking),
    )


def scores_by_id(scores: jax.Array, tables: RuleTables, row: jax.Array) -> jax.Array:
    """Of the tokens that each request asks about: float32 ``[R, 128]`` of ``[R, V]``."""
    return jnp.take_along_axis(scores, tables.logprob_ids[row], axis=-1)


def _bar_bad_words(x: jax.Array, recent: jax.Array, words: jax.Array) -> jax.Array:
    """Bar the last token of every bad word whose other tokens were just generated."""
    beginning, last = words[..., :-1], words[..., -1]
    matches = jnp.all((beginning == _ANY_TOKEN) | (beginning == recent[:, None]), axis=-1)
    barred = jnp.where(matches & (last != _ANY_TOKEN), last, x.shape[1])
    rows = jnp.arange(x.shape[0])[:, None]
    return x.at[rows, barred].set(-jnp.inf, mode="drop")


def _bar_stops(x: jax.Array, is_stop: jax.Array, bar: jax.Array) -> jax.Array:
    """Bar the stop tokens, but where nothing else is allowed (a grammar that has ended)."""
    without = jnp.where(is_stop, -jnp.inf, x)
    something_left = jnp.any(without > -jnp.inf, axis=-1)
    return jnp.where((bar & something_left)[:, None], without, x)
