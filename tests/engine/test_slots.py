# SPDX-License-Identifier: Apache-2.0
"""The smallest pool of state slots that the plan admits serves a request without preemption."""

import jax
import pytest

from tests.engine.engines import draw_prompts, engine, generate, greedy
from vllm_ironwood.cache.plan import NULL_SLOTS
from vllm_ironwood.errors import ConfigurationError


@pytest.mark.parametrize(
    ("caching", "asynchronous", "per_request"),
    [(True, True, 3), (True, False, 2), (False, True, 1)],
)
def test_a_long_prompt_alone_is_never_preempted(
    tiny_checkpoint, caching, asynchronous, per_request
):
    with engine(
        tiny_checkpoint,
        enable_prefix_caching=caching,
        async_scheduling=asynchronous,
        max_num_batched_tokens=256,
        max_num_seqs=8,
        additional_config={"state_slots": NULL_SLOTS + per_request},
    ) as llm:
        preempt = llm.llm_engine.engine_core.engine_core.scheduler._preempt_request
        preempted = []

        def count(request, *args, **kwargs):
            preempted.append(request.request_id)
            preempt(request, *args, **kwargs)

        llm.llm_engine.engine_core.engine_core.scheduler._preempt_request = count
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        scheduler.max_num_scheduled_tokens = 128
        [prompt] = draw_prompts(1, 400, longest=490, seed=0)
        [(tokens, _)] = generate(llm, [prompt], greedy(8))
        assert len(tokens) == 8
        assert preempted == []


def test_one_slot_less_than_a_request_needs_is_refused(tiny_checkpoint):
    short = engine(tiny_checkpoint, additional_config={"state_slots": 3})
    with pytest.raises(ConfigurationError, match="do not hold one request, which needs 4"):
        short.__enter__()


def test_d3_the_plan_counts_what_is_allocated(tiny_checkpoint):
    """Acceptance row D3: bytes per token and per slot are those of the arrays on the device."""
    with engine(tiny_checkpoint, max_num_batched_tokens=256, max_num_seqs=8) as llm:
        worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
        plan = worker._memory_plan()
        caches = worker.model_runner._state.caches
        assert caches.pages.nbytes == plan.bytes_per_token * caches.pages.shape[1] * plan.block_size
        states = caches.conv_state.nbytes + caches.recurrent_state.nbytes
        assert states == plan.caches.num_slots * plan.caches.bytes_per_slot
        assert plan.weights == sum(leaf.nbytes for leaf in jax.tree.leaves(worker._params))
        assert plan.step_temporaries > 0
        rules = worker.model_runner._state.rules
        tables = rules.bias.nbytes + rules.counts.nbytes + rules.flags.nbytes
        assert plan.sampling_tables == tables
        running, limit = plan.concurrency()
        assert (running, limit) == (8, "--max-num-seqs")
        assert f"{running} run at once" in plan.table()
