# SPDX-License-Identifier: Apache-2.0
"""What `/metrics` counts is what a reader works out by hand, and what docs/metrics.md says."""

import asyncio
import re
from pathlib import Path

import aiohttp
import pytest

from benchmarks import soak
from tests.serving.server import Server

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
PROMPT = [5 + i % 700 for i in range(300)]


@pytest.fixture(scope="module")
def metrics(demo_checkpoint, tmp_path_factory) -> dict[str, float]:
    """After two identical prompts of 300 tokens, one after the other, and a short one."""
    log = tmp_path_factory.mktemp("log") / "server.log"
    server = Server(demo_checkpoint, log, *soak.ARGUMENTS)

    async def main() -> dict[str, float]:
        async with aiohttp.ClientSession() as session:
            for prompt in (PROMPT, PROMPT, [9, 9, 9]):
                body = {"model": server.model, "prompt": prompt, "max_tokens": 4}
                async with session.post(f"{server.url}/v1/completions", json=body) as reply:
                    assert reply.status == 200, await reply.text()
            return await soak.metrics_at_rest(session, server)

    try:
        server.wait_until_ready()
        return asyncio.run(main())
    finally:
        server.kill()


def test_hits_are_those_counted_by_hand(metrics):
    """Two whole blocks of 128 of 300 tokens come from the cache, with the state after them."""
    assert metrics["vllm:prefix_cache_queries_total"] == 300 + 300 + 3
    assert metrics["vllm:prefix_cache_hits_total"] == 256
    assert metrics["vllm:gdn_snapshot_hits_total"] == 1
    assert metrics["vllm:gdn_state_slots_in_use"] == 0
    assert metrics["vllm:gdn_snapshots"] >= 1


def test_the_page_names_what_is_served(metrics):
    page = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"`(vllm:\w+)`", page))
    assert named <= set(metrics)
    assert {name for name in metrics if name.startswith("vllm:gdn_")} <= named
