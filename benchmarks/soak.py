# SPDX-License-Identifier: Apache-2.0
"""Thousands of short random requests, many of them aborted, against a server on the CPU.

    python benchmarks/soak.py [--requests 5000] [--model DIR]

A canary prompt is asked every 100 requests: its greedy answer must never change. At the end no
GDN state slot, no page and no request is held, and the resident memory of the engine core, taken
every 100 requests too, has not grown since the first 500. Exits with 1 where that does not hold.
"""

import argparse
import asyncio
import random
import re
import statistics
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
# More than the pool has slots for, so that snapshots are evicted too.
SHARED_BEGINNINGS = 60
ABORTED = 0.16
WARM_UP_REQUESTS = 500
# 2 KiB a request. Thousands of requests have shown a thirtieth of that.
MOST_MIB_PER_1000_REQUESTS = 2.0
SHOWN = (
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:num_preemptions_total",
)
AT_REST = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:gdn_state_slots_in_use",
    "vllm:kv_cache_usage_perc",
)


class Left(Exception):
    """The client closed its connection, as planned."""


@dataclass
class Report:
    """What a soak saw.

    Attributes:
        canary: the distinct answers to the canary prompt; one of them is right.
        memory_mib: resident memory of the engine core, at every canary and at the end.
        failures: what went wrong with a request that nobody aborted.
        metrics: what the server counts when all is over.
    """

    finished: int = 0
    aborted: int = 0
    canary: set[str] = field(default_factory=set)
    memory_mib: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)

    def held(self) -> dict[str, float]:
        """What should be zero at rest and is not."""
        return {name: self.metrics[name] for name in AT_REST if self.metrics[name] != 0}

    def mib_per_1000_requests(self) -> float | None:
        """Slope of a line through the memory after the warm-up; None: too few requests."""
        memory = self.memory_mib[WARM_UP_REQUESTS // CANARY_EVERY :]
        if len(memory) < 10:
            return None
        thousands = [i * CANARY_EVERY / 1000 for i in range(len(memory))]
        return statistics.linear_regression(thousands, memory).slope

    def faults(self) -> list[str]:
        faults = [f"failed: {failure}" for failure in self.failures]
        if len(self.canary) != 1:
            faults.append(f"the canary prompt has {len(self.canary)} answers: {self.canary}")
        faults += [f"{name} is {value:g} at rest" for name, value in self.held().items()]
        slope = self.mib_per_1000_requests()
        if slope is not None and slope > MOST_MIB_PER_1000_REQUESTS:
            faults.append(f"memory grows by {slope:.2f} MiB per 1,000 requests")
        return faults


def random_request(rng: random.Random) -> dict:
    """A completion with a prompt that may share its beginning with others', and any fields."""
    family = rng.randrange(SHARED_BEGINNINGS)
    shared = [family + 1] * rng.choice([0, 0, 130, 260])
    max_tokens = rng.randint(1, 24)
    request = {
        "prompt": shared + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 60))],
        "max_tokens": max_tokens,
        "temperature": rng.choice([0, 0.7, 1.3]),
        "stream": True,
    }
    rare = {
        "top_p": rng.choice([0.3, 0.9]),
        "top_k": rng.choice([1, 20]),
        "min_p": rng.choice([0.05, 0.5]),
        "seed": rng.randrange(2**31),
        "logprobs": rng.choice([0, 3]),
        "presence_penalty": rng.uniform(-2, 2),
        "frequency_penalty": rng.uniform(-2, 2),
        "repetition_penalty": rng.uniform(0.5, 2),
        "logit_bias": {str(rng.randrange(VOCAB)): rng.uniform(-100, 100) for _ in range(5)},
        "allowed_token_ids": rng.sample(range(VOCAB), 50),
        "bad_words": ["the", "a"],
        "min_tokens": rng.randint(0, max_tokens),
        "ignore_eos": True,
        "stop": ["e"],
        "n": 2,
        "structured_outputs": {"choice": ["yes", "no", "perhaps"]},
        "prompt_logprobs": rng.choice([0, 2]),
    }
    request |= {name: value for name, value in rare.items() if rng.random() < 0.12}
    if "structured_outputs" in request:  # the two may leave no token to choose from
        request.pop("allowed_token_ids", None)
    if "prompt_logprobs" in request:
        request["stream"] = False
    if request["temperature"] == 0:  # vLLM refuses several greedy answers
        request.pop("n", None)
    return request


@dataclass(frozen=True)
class Patience:
    """How long a client waits: seconds, or pieces of a streamed answer. None: to the end."""

    seconds: float | None = None
    pieces: int | None = None

    @classmethod
    def draw(cls, rng: random.Random) -> "Patience":
        """Leaves at any point: while it waits, in its prompt, between tokens."""
        if rng.random() >= ABORTED:
            return cls()
        if rng.random() < 0.5:
            return cls(seconds=rng.uniform(0, 0.3))
        return cls(pieces=rng.randint(1, 12))


async def soak(server: Server, requests: int, seed: int = 0) -> Report:
    rng, report = random.Random(seed), Report()
    gate = asyncio.Semaphore(OPEN_AT_ONCE)
    timeout = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        with tqdm(total=requests, unit="request") as bar:

            async def one(body: dict, patience: Patience) -> None:
                try:
                    await _complete(session, server, body, patience)
                    report.finished += 1
                except Left:
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
                    report.memory_mib.append(_engine_memory_mib(server))
                await gate.acquire()
                task = asyncio.create_task(one(random_request(rng), Patience.draw(rng)))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.gather(*tasks)
        report.canary.add(await _canary(session, server))
        report.memory_mib.append(_engine_memory_mib(server))
        report.metrics = await metrics_at_rest(session, server)
    return report


async def _complete(
    session: aiohttp.ClientSession, server: Server, body: dict, patience: Patience
) -> None:
    """Read the whole answer.

    Raises:
        Left: patience ran out first; the connection is closed.
        RuntimeError: the answer is an error, or is cut off.
    """
    request = {"model": server.model, **body}
    limit = asyncio.timeout(patience.seconds)
    lines: list[str] = []
    try:
        async with limit, session.post(f"{server.url}/v1/completions", json=request) as reply:
            while line := await reply.content.readline():
                lines.append(line.decode().strip())
                if sum(bool(line) for line in lines) == patience.pieces:
                    reply.close()
                    raise Left
    except TimeoutError:
        if limit.expired():
            raise Left from None
        raise
    text = "\n".join(lines).strip()
    whole = text.endswith("data: [DONE]") if body["stream"] else '"finish_reason":' in text
    if reply.status != 200 or not whole or '"error":' in text:
        raise RuntimeError(f"HTTP {reply.status}: {text[-300:]}")


async def _canary(session: aiohttp.ClientSession, server: Server) -> str:
    request = {"model": server.model, **CANARY}
    async with session.post(f"{server.url}/v1/completions", json=request) as reply:
        reply.raise_for_status()
        return (await reply.json())["choices"][0]["text"]


def _engine_memory_mib(server: Server) -> float:
    """Resident memory of the engine core, the largest of the server's processes."""
    sizes = []
    for pid in server.processes():
        try:
            sizes.append(psutil.Process(pid).memory_info().rss / 2**20)
        except psutil.NoSuchProcess:
            continue
    return max(sizes)


async def metrics_at_rest(session: aiohttp.ClientSession, server: Server) -> dict[str, float]:
    """The server's metrics once it has nothing to do; aborts take a step to arrive."""
    for _ in range(100):
        async with session.get(f"{server.url}/metrics") as reply:
            metrics = read_metrics(await reply.text())
        if not any(metrics[name] for name in AT_REST):
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
    print(f"engine memory, MiB: {' '.join(f'{m:.0f}' for m in report.memory_mib)}")
    slope = report.mib_per_1000_requests()
    if slope is not None:
        print(f"slope after {WARM_UP_REQUESTS} requests: {slope:.2f} MiB per 1,000 requests")
    for name, value in report.metrics.items():
        if name.startswith("vllm:gdn_") or name in SHOWN:
            print(f"{name} {value:.0f}")
    faults = report.faults()
    print(*faults[:5], sep="\n", end="\n" if faults else "")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
