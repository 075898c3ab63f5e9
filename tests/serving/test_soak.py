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
    assert report.aborted > REQUESTS // 40


def test_the_answer_to_the_canary_prompt_never_changes(report):
    [answer] = report.canary
    assert len(answer) > 10


def test_nothing_is_held_afterwards(report):
    metrics = report.metrics
    assert metrics["vllm:num_requests_running"] == metrics["vllm:num_requests_waiting"] == 0
    assert metrics["vllm:kv_cache_usage_perc"] == 0
    assert metrics["vllm:gdn_state_slots_in_use"] == 0


def test_state_metrics_count_what_the_prefix_cache_did(report):
    metrics = report.metrics
    assert metrics["vllm:gdn_state_slots"] == 16 * 3 * 2
    assert 0 < metrics["vllm:gdn_snapshots"] <= metrics["vllm:gdn_state_slots"]
    assert metrics["vllm:gdn_snapshot_hits_total"] > 10
    assert metrics["vllm:prefix_cache_hits_total"] > 0


def test_memory_is_flat(report):
    """A leak of 1 % of the caches a request would show as 1 GiB."""
    assert max(report.memory_mib[1:]) - report.memory_mib[1] < 150
