# SPDX-License-Identifier: Apache-2.0
"""Thousands of short random requests, many of them aborted, against a server on the CPU.

    python benchmarks/soak.py [--requests 5000] [--model DIR]

A canary prompt is asked every 100 requests: its greedy answer must never change. At the end
no GDN state slot is in use and no request is left, and the engine's memory is as large as
after the first tenth of the requests (the report has it every 100 requests).
"""

import argparse
import asyncio
import random
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
from tqdm import tqdm

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.serving.server import Server  # noqa: E402

ARGUMENTS = [
    "--max-model-len=512",
    "--max-num-seqs=16",
    "--max-num-batched-tokens=256",
    "--no-enable-log-requests",
    '--additional-config={"forbid_recompilation": true, "cpu_cache_gib": 0.25}',
]
CANARY = {"prompt": "Tell me a story about the sea", "max_tokens": 24, "temperature": 0}
CANARY_EVERY = 100
OPEN_AT_ONCE = 24
VOCAB = 1000


@dataclass
class Report:
    """What a soak saw.

    Attributes:
        canary: the distinct answers to the canary prompt; one of them is right.
        memory_mib: resident memory of all the server's processes, at every canary.
        failures: what went wrong with a request that nobody aborted.
    """

    finished: int = 0
    aborted: int = 0
    canary: set[str] = field(default_factory=set)
    memory_mib: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)

    def growth_mib(self) -> float:
        """Median memory of the last fifth less that of the second fifth."""
        fifth = max(1, len(self.memory_mib) // 5)

        def median(values: list[float]) -> float:
            return sorted(values)[len(values) // 2]

        return median(self.memory_mib[-fifth:]) - median(self.memory_mib[fifth : 2 * fifth])


def random_request(rng: random.Random) -> dict:
    """A completion with a prompt that may share its beginning with others', and any sampling."""
    shared = [7] * rng.choice([0, 0, 130, 260])
    prompt = shared + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 60))]
    return {
        "prompt": prompt,
        "max_tokens": rng.randint(1, 24),
        "temperature": rng.choice([0, 0.7, 1.3]),
        "top_p": rng.choice([1.0, 0.9]),
        "top_k": rng.choice([-1, 20]),
        "seed": rng.choice([None, rng.randrange(2**31)]),
        "logprobs": rng.choice([None, 0, 3]),
        "stream": True,
    }


async def soak(server: Server, requests: int, seed: int = 0) -> Report:
    rng, report = random.Random(seed), Report()
    gate = asyncio.Semaphore(OPEN_AT_ONCE)
    timeout = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        with tqdm(total=requests, unit="request") as bar:

            async def one(body: dict, abort_after: float | None) -> None:
                try:
                    async with asyncio.timeout(abort_after):
                        await _stream(session, server, body)
                    report.finished += 1
                except TimeoutError:
                    report.aborted += 1
                except Exception as error:
                    report.failures.append(f"{body}: {error!r}")
                finally:
                    gate.release()
                    bar.update()

            tasks: set[asyncio.Task] = set()
            for number in range(requests):
                if number % CANARY_EVERY == 0:
                    report.canary.add(await _canary(session, server))
                    report.memory_mib.append(_memory_mib(server))
                await gate.acquire()
                # At any point: waiting, in the prompt, between tokens.
                abort_after = rng.uniform(0, 0.15) if rng.random() < 0.2 else None
                task = asyncio.create_task(one(random_request(rng), abort_after))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.gather(*tasks)
        report.canary.add(await _canary(session, server))
        report.metrics = await _metrics_at_rest(session, server)
    return report


async def _stream(session: aiohttp.ClientSession, server: Server, body: dict) -> None:
    request = {"model": server.model, **body}
    async with session.post(f"{server.url}/v1/completions", json=request) as reply:
        text = await reply.text()
        if reply.status != 200 or not text.rstrip().endswith("data: [DONE]"):
            raise RuntimeError(f"HTTP {reply.status}: {text[-300:]}")


async def _canary(session: aiohttp.ClientSession, server: Server) -> str:
    request = {"model": server.model, **CANARY}
    async with session.post(f"{server.url}/v1/completions", json=request) as reply:
        reply.raise_for_status()
        return (await reply.json())["choices"][0]["text"]


def _memory_mib(server: Server) -> float:
    total = 0
    for pid in server.processes():
        try:
            total += psutil.Process(pid).memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / 2**20


async def _metrics_at_rest(session: aiohttp.ClientSession, server: Server) -> dict[str, float]:
    """The server's metrics once it has nothing to do; aborts take a step to arrive."""
    for _ in range(100):
        async with session.get(f"{server.url}/metrics") as reply:
            metrics = read_metrics(await reply.text())
        busy = metrics["vllm:num_requests_running"] + metrics["vllm:num_requests_waiting"]
        if busy + metrics["vllm:gdn_state_slots_in_use"] == 0:
            break
        await asyncio.sleep(0.1)
    return metrics


def read_metrics(text: str) -> dict[str, float]:
    """Name to value, summed over labels, of Prometheus' text format."""
    found: dict[str, float] = {}
    for name, value in re.findall(r"^([a-zA-Z_:]+)(?:\{.*\})? (\S+)$", text, re.M):
        found[name] = found.get(name, 0.0) + float(value)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--model", type=Path, default=ROOT / "examples" / "demo_checkpoint")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        server = Server(arguments.model, Path(directory) / "server.log", *ARGUMENTS)
        try:
            report = asyncio.run(soak(server.wait_until_ready(), arguments.requests))
        finally:
            server.kill()
    print(f"{report.finished} finished, {report.aborted} aborted, {len(report.failures)} failed")
    print(f"{len(report.canary)} answer(s) to the canary prompt")
    memory = report.memory_mib
    print(f"memory MiB: {' '.join(f'{m:.0f}' for m in memory)}; growth {report.growth_mib():.1f}")
    for name, value in report.metrics.items():
        if name.startswith("vllm:gdn_"):
            print(f"{name} {value:.0f}")
    for failure in report.failures[:5]:
        print(failure)
    sys.exit(bool(report.failures or len(report.canary) != 1))


if __name__ == "__main__":
    main()
