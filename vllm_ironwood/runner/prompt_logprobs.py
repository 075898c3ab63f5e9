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
    """What one step computes of one prompt; nothing where all its targets are behind."""

    request_id: str
    rows: slice  # token rows of the step
    start: int  # position of the first of them
    prompt_len: int
    num_logprobs: int
    samples: bool  # the step also samples for the request
    attempt: int = 0  # how often its prompt had been started anew


def parts_of_step(
    requests: RequestTable, request_ids: list[str], rows: np.ndarray, new_tokens: np.ndarray
) -> list[Part]:
    """The parts that somebody asked for; the last token of a prompt has no target in it."""
    asked = requests.sampling["num_prompt_logprobs"][rows]
    if asked.max() < 0:
        return []
    context = requests.computed[rows]
    known = requests.known_len[rows]
    wanted = (asked >= 0) & (context < known)
    starts = np.cumsum(new_tokens) - new_tokens
    parts = []
    for i in np.flatnonzero(wanted):
        prompt_len = int(requests.sampling["prompt_len"][rows[i]])
        count = max(0, min(int(new_tokens[i]), prompt_len - 1 - int(context[i])))
        parts.append(
            Part(
                request_id=request_ids[i],
                rows=slice(int(starts[i]), int(starts[i]) + count),
                start=int(context[i]),
                prompt_len=prompt_len,
                num_logprobs=int(asked[i]),
                samples=bool(context[i] + new_tokens[i] >= known[i]),
            )
        )
    return parts


class PromptLogprobs:
    """Collects the parts of each prompt and hands it over once, beside a sampled token.

    vLLM's scheduler takes nothing from a step that sampled nothing for the request. A step's
    output may arrive after its request is gone, or after it was preempted and began anew: a
    part counts only if its prompt is awaited and was not started again since.
    """

    def __init__(self) -> None:
        self._attempts: dict[str, int] = {}  # of the prompts that are awaited
        self._collected: dict[str, Logprobs] = {}
        self._delivered: set[str] = set()

    def expect(self, parts: list[Part]) -> list[Part]:
        """A step is about to compute these parts; returns those that are still wanted."""
        return [
            part._replace(attempt=self._attempts.setdefault(part.request_id, 0))
            for part in parts
            if part.request_id not in self._delivered
        ]

    def restart(self, request_id: str) -> None:
        """A preempted request resumes: what is in flight of its prompt is computed again."""
        if request_id in self._attempts:
            self._attempts[request_id] += 1
            self._collected.pop(request_id, None)

    def add(self, parts: list[Part], step: Logprobs) -> dict[str, LogprobsTensors]:
        """Take in a step's parts.

        Args:
            step: the step's logprobs on the host, a row per token row.

        Returns:
            The prompts to hand over with this step.
        """
        whole = {}
        for part in parts:
            request_id = part.request_id
            if self._attempts.get(request_id) != part.attempt:
                continue
            columns = 1 + part.num_logprobs
            found = Logprobs(
                token_ids=step.token_ids[part.rows, :columns],
                logprobs=step.logprobs[part.rows, :columns],
                ranks=step.ranks[part.rows],
            )
            if request_id not in self._collected:
                self._collected[request_id] = _room_for(part.prompt_len - 1, found)
            collected = self._collected[request_id]
            for into, values in zip(collected, found, strict=True):
                into[part.start : part.start + len(values)] = values
            if part.samples:
                self.forget(request_id)
                self._delivered.add(request_id)
                whole[request_id] = LogprobsTensors(*map(torch.from_numpy, collected))
        return whole

    def forget(self, request_id: str) -> None:
        """The request is gone, or nothing more is wanted of its prompt."""
        self._attempts.pop(request_id, None)
        self._collected.pop(request_id, None)
        self._delivered.discard(request_id)


def _room_for(length: int, found: Logprobs) -> Logprobs:
    return jax.tree.map(lambda a: np.zeros((length, *a.shape[1:]), a.dtype), found)
