# SPDX-License-Identifier: Apache-2.0
"""The two pools share the memory so that requests can run, or the plan says what would fit."""

import pytest

from vllm_ironwood.cache.plan import CacheMemoryError, plan_caches

MIB = 2**20


def plan(budget, **changes):
    arguments = {
        "budget": budget,
        "bytes_per_slot": MIB,
        "bytes_per_page": MIB // 4,
        "pages_per_request": 8,
        "max_requests": 4,
        "prefix_caching": True,
        "async_scheduling": True,
    }
    return plan_caches(**{**arguments, **changes})


@pytest.mark.parametrize("budget", [8 * MIB, 21 * MIB, 10**9, 8 * MIB + 1])
def test_the_pools_never_take_more_than_the_budget(budget):
    p = plan(budget)
    assert p.state_bytes + p.page_bytes <= budget


def test_ample_memory_gives_every_request_its_slots_and_pages():
    p = plan(10**10)
    assert p.num_slots == 1 + 4 * 3 * 2
    assert p.page_bytes == (4 * 8 + 1) * MIB // 4


def test_without_prefix_caching_a_request_needs_one_slot():
    assert plan(10**10, prefix_caching=False).num_slots == 1 + 4


def test_little_memory_gives_slots_no_more_than_half():
    p = plan(8 * MIB)
    assert p.num_slots == 4
    assert p.page_bytes == 4 * MIB


@pytest.mark.parametrize("budget", [0, MIB, 5 * MIB])
def test_too_little_for_one_request_is_refused_with_what_it_needs(budget):
    with pytest.raises(CacheMemoryError, match="do not hold one request, which needs 4"):
        plan(budget)


def test_slots_that_leave_nothing_for_pages_are_refused():
    with pytest.raises(CacheMemoryError, match="lower state_slots"):
        plan(8 * MIB, num_slots=8)


def test_a_slot_count_given_by_the_user_is_kept():
    assert plan(100 * MIB, num_slots=5).num_slots == 5


@pytest.mark.parametrize(
    ("caching", "asynchronous", "slots"),
    [(False, False, 1), (False, True, 1), (True, False, 2), (True, True, 3)],
)
def test_concurrency_counts_every_slot_a_request_may_hold(caching, asynchronous, slots):
    p = plan(100 * MIB, prefix_caching=caching, async_scheduling=asynchronous, num_slots=13)
    assert p.slots_per_request == slots
    assert p.max_concurrency == 12 // slots
