# SPDX-License-Identifier: Apache-2.0
"""Thousands of random schedules, and the proof that planted faults do not get through."""

import functools
import os

import numpy as np
import pytest

from tests.engine.engines import engine, generate, greedy
from tests.engine.schedule_machine import LONGEST_ANSWER, ScheduleMachine
from vllm_ironwood.cache.audit import PoolFault
from vllm_ironwood.cache.state_manager import GdnStateManager
from vllm_ironwood.runner import model_runner, programs
from vllm_ironwood.runner.requests import RequestTable

STEPS = int(os.environ.get("IRONWOOD_TEST_SCHEDULE_STEPS", "5000"))  # per setting, of four
SHAPES = {
    "max_model_len": 512,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "additional_config": {"debug_fill_nan": True, "state_slots": 24},
}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Lengths around the blocks of 128, some a prefix or an extension of others."""
    rng = np.random.default_rng(0)
    system = rng.integers(0, 400, 300).tolist()
    own = [rng.integers(0, 400, n).tolist() for n in (1, 2, 63, 64, 127, 128, 129, 200, 257)]
    extended = [system[:n] + rng.integers(0, 400, 5).tolist() for n in (100, 128, 256, 290)]
    return own + extended + [system[:n] for n in (127, 128, 129, 256, 300)]


@pytest.fixture(scope="module")
def answers(tiny_checkpoint, prompts) -> list[list[int]]:
    with engine(tiny_checkpoint, enable_prefix_caching=False, **SHAPES) as llm:
        return [generate(llm, [p], greedy(LONGEST_ANSWER))[0][0] for p in prompts]


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("caching", [True, False])
def test_every_order_of_events_gives_the_same_answers(
    tiny_checkpoint, prompts, answers, caching, asynchronous
):
    """Acceptance rows A1 and A2: free slots hold NaN, and no state is lost, shared or stale."""
    with engine(
        tiny_checkpoint, enable_prefix_caching=caching, async_scheduling=asynchronous, **SHAPES
    ) as llm:
        counts = ScheduleMachine(llm, prompts, answers).run_until(STEPS)
    assert counts.finished > STEPS / 20
    assert (counts.cached_tokens > 0) == caching
    assert counts.resets > 0
    assert counts.preemptions > 50
    assert "waiting" in counts.aborts
    assert any("decode" in kind for kind in counts.aborts)
    assert any("prefill" in kind for kind in counts.aborts)
    assert any("in flight" in kind for kind in counts.aborts) == asynchronous


def state_of_a_dead_request_is_read(monkeypatch):
    """As if a slot were not cleared: every request believes that it has a state."""
    faulty = programs.GdnSlots

    def always_initial(**fields):
        return faulty(**{**fields, "has_initial_state": fields["has_initial_state"] | True})

    monkeypatch.setattr(programs, "GdnSlots", always_initial)
    fresh = functools.cache(programs._compiled_step.__wrapped__)
    monkeypatch.setattr(programs, "_compiled_step", fresh)


def a_write_is_dropped(monkeypatch):
    """Now and then a step's state goes to the null slot, past the check of slot ids."""
    fill = model_runner._fill
    random = np.random.default_rng(0)

    def forgetful(fields, requests, rows, new_tokens):
        fill(fields, requests, rows, new_tokens)
        if random.random() < 0.05:
            fields.state_write[int(random.integers(len(rows)))] = 0

    monkeypatch.setattr(model_runner, "_fill", forgetful)
    monkeypatch.setattr(model_runner.ModelRunner, "_check_capacity", lambda *args: None)


def a_slot_is_freed_twice(monkeypatch):
    free = GdnStateManager.pop_blocks_for_free

    def twice(self, request_id):
        blocks = [b for b in self.req_to_blocks.get(request_id, []) if not b.is_null]
        result = free(self, request_id)
        if blocks and blocks[-1].ref_cnt == 0:
            self.block_pool.free_block_queue.append(blocks[-1])
        return result

    monkeypatch.setattr(GdnStateManager, "pop_blocks_for_free", twice)


def a_resumed_request_keeps_its_old_state(monkeypatch):
    """As if a request went on from where it was preempted, in memory it gave back."""
    preempt, resume = RequestTable.preempt, RequestTable.resume
    kept = {}

    def remember(self, request_id):
        row = self.rows([request_id])[0]
        kept[request_id] = self.states[row].copy()
        preempt(self, request_id)

    def restore(self, request_id, *args):
        resume(self, request_id, *args)
        row = self.rows([request_id])[0]
        self.states[row] = np.where(kept[request_id] > 0, kept[request_id], self.states[row])

    monkeypatch.setattr(RequestTable, "preempt", remember)
    monkeypatch.setattr(RequestTable, "resume", restore)


@pytest.mark.parametrize(
    ("plant", "caught_as"),
    [
        (state_of_a_dead_request_is_read, AssertionError),
        (a_write_is_dropped, AssertionError),
        (a_slot_is_freed_twice, PoolFault),
        (a_resumed_request_keeps_its_old_state, AssertionError),
    ],
)
def test_a_planted_fault_is_caught(
    tiny_checkpoint, prompts, answers, monkeypatch, plant, caught_as
):
    plant(monkeypatch)
    with engine(tiny_checkpoint, **SHAPES) as llm, pytest.raises(caught_as):
        ScheduleMachine(llm, prompts, answers).run_until(1000)
