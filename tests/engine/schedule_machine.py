# SPDX-License-Identifier: Apache-2.0
"""Random orders of events against a real engine: its scheduler, managers and runner.

An episode draws how much memory there is, how long a chunk may be and what happens when;
then it admits, aborts, resets the prefix cache and steps, until all requests are done.
Whatever the order, a request's tokens are those it gets alone in a fresh engine.
"""

from dataclasses import dataclass, field

import numpy as np
from vllm import LLM, SamplingParams
from vllm.v1.request import RequestStatus

LONGEST_ANSWER = 24
WITHHELD = "withheld"  # the name under which the audit finds the slots that an episode keeps


@dataclass
class Counts:
    """What happened, so that a test can show that it happened often enough."""

    steps: int = 0
    preemptions: int = 0
    aborts: dict[str, int] = field(default_factory=dict)
    resets: int = 0
    finished: int = 0
    cached_tokens: int = 0


class ScheduleMachine:
    """Drives one engine through episodes.

    Args:
        llm: engine with its core in this process and ``debug_fill_nan`` on, which checks
            both pools and poisons their free memory before each step.
        prompts: what requests are drawn from; several share prefixes.
        answers: each prompt's greedy answer of :data:`LONGEST_ANSWER` tokens, alone.
    """

    def __init__(self, llm: LLM, prompts: list[list[int]], answers: list[list[int]]) -> None:
        self._engine = llm.llm_engine
        self._scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        self._managers = self._scheduler.kv_cache_manager.coordinator.single_type_managers
        self._prompts, self._answers = prompts, answers
        self._names = 0
        self._withheld = False
        self.counts = Counts()
        self._count_preemptions()

    def run_until(self, steps: int) -> Counts:
        """Episodes with seeds 0, 1, 2, ... until they took that many steps."""
        seed = 0
        while self.counts.steps < steps:
            self.run(seed)
            seed += 1
        return self.counts

    def run(self, seed: int) -> None:
        """One episode.

        Raises:
            AssertionError: a request got other tokens than it gets alone.
            PoolFault: a pool's accounting is wrong.
        """
        rng = np.random.default_rng(seed)
        most = self._scheduler.scheduler_config.max_num_batched_tokens
        self._scheduler.max_num_scheduled_tokens = int(rng.choice([16, 63, 128, 129, most]))
        withheld = self._withhold(rng)
        self._withheld = any(blocks for _, blocks in withheld)
        try:
            self._drive(rng, num_requests=int(rng.integers(4, 14)))
        finally:
            for pool, blocks in withheld:
                pool.free_blocks(blocks)
        self._assert_empty()

    def _count_preemptions(self) -> None:
        preempt = self._scheduler._preempt_request

        def counted(*args, **kwargs) -> None:
            self.counts.preemptions += 1
            preempt(*args, **kwargs)

        self._scheduler._preempt_request = counted

    def _withhold(self, rng: np.random.Generator) -> list:
        """Starve the pools, by keeping blocks, without changing any program's shapes."""
        withheld = []
        if rng.random() < 0.3:
            return withheld
        for manager, fewest in zip(self._managers, (5, 2), strict=True):
            pool = manager.block_pool
            free = pool.get_num_free_blocks()
            left = int(rng.choice([fewest, fewest + 1, 2 * fewest, free]))
            withheld.append((pool, pool.get_new_blocks(max(0, free - left))))
        self._managers[1].req_to_blocks[WITHHELD] = withheld[1][1]
        return withheld

    def _drive(self, rng: np.random.Generator, num_requests: int) -> None:
        arrivals = np.sort(rng.integers(0, 40, num_requests))
        expected: dict[str, list[int]] = {}
        step = 0
        while len(arrivals) or self._engine.has_unfinished_requests():
            while len(arrivals) and (arrivals[0] <= step or not expected):
                self._admit(rng, expected)
                arrivals = arrivals[1:]
            for output in self._engine.step():
                if output.finished and output.request_id in expected:
                    self._finish(output, expected)
            self.counts.steps += 1
            step += 1
            if expected and rng.random() < 0.03:
                self._abort(rng, expected)
            # Only with nothing withheld can all blocks come back, as a reset demands.
            if not self._withheld and rng.random() < 0.02:
                self._scheduler.reset_prefix_cache(reset_running_requests=True)
                self.counts.resets += 1
            if step > 5000:
                raise AssertionError(f"{len(expected)} requests made no progress in {step} steps")
        assert not expected

    def _admit(self, rng: np.random.Generator, expected: dict[str, list[int]]) -> None:
        which = int(rng.integers(len(self._prompts)))
        length = int(rng.integers(1, LONGEST_ANSWER + 1))
        name = f"r{self._names}"
        self._names += 1
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        self._engine.add_request(name, {"prompt_token_ids": self._prompts[which]}, params)
        expected[name] = self._answers[which][:length]

    def _finish(self, output, expected: dict[str, list[int]]) -> None:
        tokens = list(output.outputs[0].token_ids)
        assert tokens == expected.pop(output.request_id), f"request {output.request_id}"
        self.counts.finished += 1
        self.counts.cached_tokens += output.num_cached_tokens or 0

    def _abort(self, rng: np.random.Generator, expected: dict[str, list[int]]) -> None:
        name = str(rng.choice(list(expected)))
        del expected[name]
        for request in list(self._scheduler.requests.values()):
            if request.request_id.startswith(f"{name}-"):  # vLLM appends a random part
                kind = _situation(request)
                self.counts.aborts[kind] = self.counts.aborts.get(kind, 0) + 1
        self._engine.abort_request([name])

    def _assert_empty(self) -> None:
        self._managers[1].req_to_blocks.pop(WITHHELD, None)
        for manager in self._managers:
            pool = manager.block_pool
            assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
            assert not manager.req_to_blocks


def _situation(request) -> str:
    if request.status == RequestStatus.PREEMPTED:
        return "preempted"
    if request.status != RequestStatus.RUNNING:
        return "waiting"
    phase = "prefill" if request.num_computed_tokens < request.num_prompt_tokens else "decode"
    return f"{phase} in flight" if request.num_in_flight_tokens else phase
