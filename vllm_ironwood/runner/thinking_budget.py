# SPDX-License-Identifier: Apache-2.0
"""`thinking_token_budget`: reasoning that has used it up is ended, token by token.

A request reasons from the last begin marker in prompt and output until an end marker follows
it. Once it has reasoned for as many tokens as its budget allows, the end sequence is forced:
each step the token after the longest beginning of the sequence that was just generated. All
of it is known on the device alone, where the last tokens are.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from vllm.config.reasoning import ReasoningConfig

from vllm_ironwood.errors import ConfigurationError
from vllm_ironwood.runner.limits import LONGEST_FORCED_END, LONGEST_REASONING_MARKER

NO_BUDGET = -1
_NOT_REASONING = -1
_PAD = -1  # in front of a marker and behind the forced end
_NO_TOKEN = -2  # in `recent`, before the first token
_RECENT = max(LONGEST_REASONING_MARKER, LONGEST_FORCED_END - 1)


class ReasoningMarkers(NamedTuple):
    """Token ids of an engine's markers, none of them empty."""

    begin: tuple[int, ...]
    end: tuple[int, ...]  # with which the model ends its reasoning by itself
    forced_end: tuple[int, ...]  # what a used-up budget makes it say


class ThinkingRows(NamedTuple):
    """``N`` request rows and a scratch row; without the first axis, one request's row."""

    budget: jax.Array | np.ndarray  # [N + 1] int32, NO_BUDGET: none
    used: jax.Array | np.ndarray  # [N + 1] int32 tokens since the begin marker; -1: none is open
    recent: jax.Array | np.ndarray  # [N + 1, 63] int32 last tokens, prompt too, the newest last
    begin: jax.Array | np.ndarray  # [N + 1, 16] int32, right-aligned
    end: jax.Array | np.ndarray  # [N + 1, 16] int32, right-aligned
    forced_end: jax.Array | np.ndarray  # [N + 1, 64] int32, left-aligned


def reasoning_markers(config: ReasoningConfig | None) -> ReasoningMarkers | None:
    """The markers of vLLM's ``--reasoning-config``; None where it names none.

    Raises:
        ConfigurationError: a marker has more tokens than the device looks at, or what is
            forced would not end the reasoning.
    """
    if config is None or not config.enabled:
        return None
    markers = ReasoningMarkers(
        begin=tuple(config.reasoning_start_token_ids),
        end=tuple(config.natural_reasoning_end_token_ids),
        forced_end=tuple(config.reasoning_end_token_ids),
    )
    limits = (LONGEST_REASONING_MARKER, LONGEST_REASONING_MARKER, LONGEST_FORCED_END)
    for name, tokens, limit in zip(ReasoningMarkers._fields, markers, limits, strict=True):
        if len(tokens) > limit:
            raise ConfigurationError(
                f"the {name} marker of --reasoning-config has {len(tokens)} tokens; "
                f"give one of at most {limit}"
            )
    if _last_end(np.asarray(markers.forced_end), markers.end) < 0:
        raise ConfigurationError(
            f"reasoning_end_str={config.reasoning_end_str!r} of --reasoning-config does not "
            "contain what ends reasoning for the parser; add it"
        )
    return markers


def no_rows(count: int) -> ThinkingRows:
    """``count`` rows without a budget."""
    row = thinking_row(None, None, np.zeros(0, np.int32))
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (count, *np.shape(a))), row)


def thinking_row(
    budget: int | None, markers: ReasoningMarkers | None, tokens: np.ndarray
) -> ThinkingRows:
    """The row of a request with these tokens so far (int32), prompt and output."""
    row = ThinkingRows(
        budget=np.int32(NO_BUDGET),
        used=np.int32(_NOT_REASONING),
        recent=np.full(_RECENT, _NO_TOKEN, np.int32),
        begin=np.full(LONGEST_REASONING_MARKER, _PAD, np.int32),
        end=np.full(LONGEST_REASONING_MARKER, _PAD, np.int32),
        forced_end=np.full(LONGEST_FORCED_END, _PAD, np.int32),
    )
    if budget is None or markers is None:
        return row
    row.begin[-len(markers.begin) :] = markers.begin
    row.end[-len(markers.end) :] = markers.end
    row.forced_end[: len(markers.forced_end)] = markers.forced_end
    tail = tokens[-_RECENT:]
    row.recent[_RECENT - len(tail) :] = tail
    begun, ended = _last_end(tokens, markers.begin), _last_end(tokens, markers.end)
    return row._replace(
        budget=np.int32(min(budget, np.iinfo(np.int32).max)),
        used=np.int32(len(tokens) - begun if begun > ended else _NOT_REASONING),
    )


def force_end(logits: jax.Array, rows: ThinkingRows, grammatical: jax.Array) -> jax.Array:
    """Leave only the next token of the forced end where a budget is used up.

    Args:
        logits: float32 ``[R, V]``.
        rows: of the step's requests, ``R`` of them.
        grammatical: bool ``[R, V]``; a grammar that is in force already goes before a budget.
    """
    used_up = (rows.budget != NO_BUDGET) & (rows.used >= rows.budget) & (rows.used >= 0)
    # A beginning of `said` tokens was generated if they are the last `said` of `recent`.
    said = np.arange(LONGEST_FORCED_END)
    place = _RECENT - said[:, None] + said[None, :-1]
    inside = said[None, :-1] < said[:, None]
    generated = rows.recent[:, np.where(inside, place, 0)]
    begun = jnp.all((generated == rows.forced_end[:, None, :-1]) | ~inside, axis=-1)
    begun &= rows.forced_end != _PAD
    longest = jnp.max(jnp.where(begun, said, 0), axis=-1)
    token = jnp.take_along_axis(rows.forced_end, longest[:, None], axis=-1)
    used_up &= jnp.take_along_axis(grammatical, jnp.maximum(token, 0), axis=-1)[:, 0]
    forced = jnp.where(jnp.arange(logits.shape[1]) == token, 0.0, -jnp.inf)
    return jnp.where(used_up[:, None], forced, logits)


def count_token(rows: ThinkingRows, sampled: jax.Array) -> ThinkingRows:
    """The step's rows after each of them generated ``sampled`` (``[R]`` int32)."""
    recent = jnp.concatenate([rows.recent[:, 1:], sampled[:, None]], axis=1)
    used = jnp.where(rows.used >= 0, rows.used + 1, _NOT_REASONING)
    used = jnp.where(_ends_with(recent, rows.begin), 0, used)
    used = jnp.where(_ends_with(recent, rows.end), _NOT_REASONING, used)
    return rows._replace(used=used, recent=recent)


def _ends_with(recent: jax.Array, marker: jax.Array) -> jax.Array:
    tail = recent[:, -marker.shape[1] :]
    return jnp.all((marker == _PAD) | (marker == tail), axis=-1)


def _last_end(tokens: np.ndarray, marker: tuple[int, ...]) -> int:
    """Index behind the last occurrence of ``marker``, -1 where there is none."""
    length = len(marker)
    if len(tokens) < length:
        return -1
    windows = np.lib.stride_tricks.sliding_window_view(tokens, length)
    found = np.flatnonzero((windows == np.asarray(marker)).all(axis=1))
    return int(found[-1]) + length if len(found) else -1
