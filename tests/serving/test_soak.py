# SPDX-License-Identifier: Apache-2.0
"""Hundreds of random requests and aborts leave no trace; `benchmarks/soak.py` runs thousands."""

import asyncio

import pytest

from benchmarks import soak
from tests.serving.server import Server

REQUESTS = 400


@pytest.fixture(scope="module")
def report(demo_checkpoint, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "server.log"
    server = Server(demo_checkpoint, log, *soak.ARGUMENTS)
    try:
        yield asyncio.run(soak.soak(server.wait_until_ready(), REQUESTS))
    finally:
        server.kill()


def test_every_request_that_nobody_aborted_is_answered(report):
    assert report.failures == []
    assert report.finished + report.aborted == REQUESTS
    assert report.aborted > REQUESTS // 20


def test_the_answer_to_the_canary_prompt_never_changes(report):
    [answer] = report.canary
    assert len(answer) > 10


def test_no_request_slot_or_page_is_held_afterwards(report):
    assert report.held() == {}


def test_snapshots_were_found_evicted_and_kept(report):
    metrics = report.metrics
    assert metrics["vllm:gdn_state_slots"] == 16 * 3 * 2
    assert 0 < metrics["vllm:gdn_snapshots"] <= metrics["vllm:gdn_state_slots"]
    assert metrics["vllm:gdn_snapshot_hits_total"] > 10
    assert metrics["vllm:gdn_snapshot_evictions_total"] > 10
    assert metrics["vllm:prefix_cache_hits_total"] >= 128 * metrics["vllm:gdn_snapshot_hits_total"]


def test_memory_is_flat(report):
    """Of the second half; a fifth of a MiB kept by each request would show."""
    middle = len(report.memory_mib) // 2
    assert max(report.memory_mib[middle:]) - report.memory_mib[middle] < REQUESTS / 2 * 0.2


def grown(mib_per_request: float) -> soak.Report:
    memory = [1000 + i * soak.CANARY_EVERY * mib_per_request for i in range(51)]
    return soak.Report(canary={"same"}, memory_mib=memory, metrics=dict.fromkeys(soak.AT_REST, 0.0))


def test_a_soak_names_what_went_wrong():
    good = grown(0.0001)
    assert good.faults() == []
    assert good.mib_per_1000_requests() == pytest.approx(0.1)
    [fault] = grown(0.01).faults()
    assert "grows by 10.00 MiB" in fault
    good.canary.add("another")
    good.metrics["vllm:gdn_state_slots_in_use"] = 2
    good.failures.append("HTTP 500")
    assert len(good.faults()) == 3
