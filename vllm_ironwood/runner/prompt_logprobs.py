# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of a prompt's own tokens, collected over the steps that compute it."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from vllm.v1.outputs import LogprobsTensors

from vllm_ironwood.runner.requests import RequestTable
from vllm_ironwood.runner.sampler import Logprobs, top_logprobs

# Token rows whose logits exist at a time: a slice of [64, 248,320] in float32 is 64 MB.
SLICE = 64


def token_logprobs(
    hidden: jax.Array,
    targets: jax.Array,
    scores_of: Callable[[jax.Array], jax.Array],
    num: int,
) -> Logprobs:
    """Of each token row's target, and of the ``num`` likeliest tokens.

    Args:
        hidden: ``[T, D]``.
        targets: int32 ``[T]``, the token that follows each row's; below 0 where nobody asks.
        scores_of: ``[S, D]`` to log-probabilities, float32 ``[S, V]``.
    """
    rows = hidden.shape[0]
    size = min(SLICE, rows)
    slices = -(-rows // size)
    padding = slices * size - rows
    hidden = jnp.pad(hidden, ((0, padding), (0, 0))).reshape(slices, size, -1)
    targets = jnp.pad(jnp.maximum(targets, 0), (0, padding)).reshape(slices, size)
    found = jax.lax.map(
        lambda part: top_logprobs(scores_of(part[0]), part[1], num), (hidden, targets)
    )
    return jax.tree.map(lambda a: a.reshape(slices * size, *a.shape[2:])[:rows], found)


class Part(NamedTuple):
    """What one step computes of one prompt."""

    request_id: str
    rows: slice  # token rows of the step
    start: int  # position of the first of them
    prompt_len: int
    num_logprobs: int


def parts_of_step(
    requests: RequestTable, request_ids: list[str], rows: np.ndarray, new_tokens: np.ndarray
) -> list[Part]:
    """The parts that somebody asked for; the last token of a prompt has no target in it."""
    sampling = requests.sampling[rows]
    context = requests.computed[rows]
    wanted = (sampling["num_prompt_logprobs"] >= 0) & (context + 1 < sampling["prompt_len"])
    starts = np.cumsum(new_tokens) - new_tokens
    parts = []
    for i in np.flatnonzero(wanted):
        prompt_len = int(sampling["prompt_len"][i])
        count = min(int(new_tokens[i]), prompt_len - 1 - int(context[i]))
        parts.append(
            Part(
                request_id=request_ids[i],
                rows=slice(int(starts[i]), int(starts[i]) + count),
                start=int(context[i]),
                prompt_len=prompt_len,
                num_logprobs=int(sampling["num_prompt_logprobs"][i]),
            )
        )
    return parts


class PromptLogprobs:
    """Collects the parts of each prompt until it is whole.

    A step's output may arrive after its request is gone: only prompts that are expected and
    not forgotten since are collected.
    """

    def __init__(self) -> None:
        self._expected: set[str] = set()
        self._collected: dict[str, Logprobs] = {}

    def expect(self, parts: list[Part]) -> None:
        """A step that computes these parts was dispatched."""
        self._expected.update(part.request_id for part in parts)

    def add(self, parts: list[Part], step: Logprobs) -> dict[str, LogprobsTensors]:
        """Take in a step's parts.

        Args:
            step: the step's logprobs on the host, a row per token row.

        Returns:
            The prompts that are whole now.
        """
        whole = {}
        for part in parts:
            if part.request_id not in self._expected:
                continue
            columns = 1 + part.num_logprobs
            found = Logprobs(
                token_ids=step.token_ids[part.rows, :columns],
                logprobs=step.logprobs[part.rows, :columns],
                ranks=step.ranks[part.rows],
            )
            if part.request_id not in self._collected:
                self._collected[part.request_id] = _room_for(part.prompt_len - 1, found)
            collected = self._collected[part.request_id]
            end = part.start + len(found.ranks)
            for into, values in zip(collected, found, strict=True):
                into[part.start : end] = values
            if end == part.prompt_len - 1:
                self.forget(part.request_id)
                whole[part.request_id] = LogprobsTensors(*map(torch.from_numpy, collected))
        return whole

    def forget(self, request_id: str) -> None:
        """Nothing more is wanted of this prompt, if anything ever was."""
        self._expected.discard(request_id)
        self._collected.pop(request_id, None)


def _room_for(length: int, found: Logprobs) -> Logprobs:
    return jax.tree.map(lambda a: np.zeros((length, *a.shape[1:]), a.dtype), found)
