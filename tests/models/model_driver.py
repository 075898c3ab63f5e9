# SPDX-License-Identifier: Apache-2.0
"""The least that runs the model: chunked prefill and greedy decode over paged caches."""

from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from csrc_pallas.gated_delta_net.api import GdnSlots
from csrc_pallas.ragged_batch import RaggedBatch
from vllm_ironwood.models.qwen3_5_moe.config import ModelConfig
from vllm_ironwood.models.qwen3_5_moe.model import (
    Caches,
    StepInputs,
    compute_logits,
    forward,
    init_caches,
)
from vllm_ironwood.models.qwen3_5_moe.params import Params

ROWS = 528  # tokens in a step
REQUESTS = 17
PAGE_SIZE = 16
LONGEST = 384  # tokens in a request, prompt and answer


@dataclass
class _Request:
    number: int
    tokens: list[int]
    prompt_len: int
    computed: int = 0
    logprobs: list[np.ndarray] = field(default_factory=list)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _step(
    config: ModelConfig, params: Params, caches: Caches, inputs: StepInputs
) -> tuple[jax.Array, Caches]:
    """Log-probabilities after the last new token of each request, float32 [R, V]."""
    hidden, caches = forward(config, params, caches, inputs)
    last = hidden[jnp.maximum(inputs.batch.query_start[1:] - 1, 0)]
    return jax.nn.log_softmax(compute_logits(config, params, last)), caches


class Driver:
    """One model and one compiled step; every free page and slot holds NaN, in random places.

    `step` is the compiled program.
    """

    def __init__(self, config: ModelConfig, params: Params):
        self.config = config
        self.params = params
        random = np.random.default_rng(5)
        per_request = LONGEST // PAGE_SIZE
        self._num_pages, self._num_slots = REQUESTS * per_request + 3, REQUESTS + 2
        pages = random.permutation(self._num_pages)[: REQUESTS * per_request]
        self._tables = pages.reshape(REQUESTS, per_request).astype(np.int32)
        self._slots = random.permutation(self._num_slots)[:REQUESTS]
        nothing = self._inputs([_Request(0, [], 0)], [0], 0)
        self.step = _step.lower(config, params, self._nan_caches(), nothing).compile()

    def generate(
        self, prompts: list[list[int]], steps: int, chunk: int
    ) -> list[tuple[list[int], np.ndarray]]:
        """Greedy answers of `steps` tokens, with the log-probabilities [steps, V] that led to each.

        A step holds one token of every request that decodes, then up to `chunk` prompt tokens of
        each other request, as long as there is room.
        """
        requests = [
            _Request(number, list(prompt), len(prompt)) for number, prompt in enumerate(prompts)
        ]
        caches = self._nan_caches()
        running = requests
        while running:
            caches = self._run_step(running, caches, chunk)
            running = [each for each in requests if len(each.logprobs) < steps]
        return [(each.tokens[each.prompt_len :], np.stack(each.logprobs)) for each in requests]

    def _run_step(self, running: list[_Request], caches: Caches, chunk: int) -> Caches:
        left = {each.number: len(each.tokens) - each.computed for each in running}
        decodes = [each for each in running if left[each.number] == 1 and each.computed]
        others = [each for each in running if each not in decodes]
        counts, batch, room = [], [], ROWS
        for each in [*decodes, *others]:
            count = min(left[each.number], room, chunk)
            batch.append(each)
            counts.append(count)
            room -= count
        logprobs, caches = self.step(self.params, caches, self._inputs(batch, counts, len(decodes)))
        logprobs = np.asarray(logprobs)
        for place, (each, count) in enumerate(zip(batch, counts)):
            each.computed += count
            if each.computed == len(each.tokens) and count:
                each.logprobs.append(logprobs[place])
                each.tokens.append(int(logprobs[place].argmax()))
        return caches

    def _inputs(self, batch: list[_Request], counts: list[int], num_decodes: int) -> StepInputs:
        padding = REQUESTS - len(batch)
        token_ids = [t for each, n in zip(batch, counts) for t in each.tokens[each.computed :][:n]]
        ends = np.cumsum(counts)
        context = [each.computed for each in batch]
        slots = _padded([self._slots[each.number] for each in batch], padding)
        return StepInputs(
            token_ids=_padded(token_ids, ROWS - len(token_ids), value=7),
            batch=RaggedBatch(
                query_start=np.array([0, *ends, *[ends[-1]] * padding], np.int32),
                context_len=_padded(context, padding),
                num_decodes=np.int32(num_decodes),
                num_requests=np.int32(len(batch)),
            ),
            block_tables=self._tables[[each.number for each in batch] + [0] * padding],
            slots=GdnSlots(slots, slots, _padded(context, padding) > 0),
        )

    def _nan_caches(self) -> Caches:
        caches = init_caches(
            self.config,
            num_pages=self._num_pages,
            page_size=PAGE_SIZE,
            num_slots=self._num_slots,
            dtype=self.params.embedding.dtype,
            state_dtype=jnp.float32,
        )
        return jax.tree.map(lambda cache: jnp.full_like(cache, jnp.nan), caches)


def _padded(values: list[int], padding: int, value: int = 0) -> np.ndarray:
    return np.array([*values, *[value] * padding], np.int32)
