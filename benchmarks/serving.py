# SPDX-License-Identifier: Apache-2.0
"""Serve a checkpoint on the CPU under load, beside transformers' `generate` in the same run.

    python benchmarks/serving.py [--model DIR] [--concurrency 1 4 16] [--json FILE]

Starts `vllm serve` with the plugin, sends `--requests` streamed completions with at most
`--concurrency` of them open at a time, then runs `generate` of transformers on a batch of
the same size, the same prompts and the same number of new tokens. Both use float32, all
cores, greedy decoding, and ignore the end-of-sequence token so that the work is equal.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

DEMO = Path(__file__).parent.parent / "examples" / "demo_checkpoint"
STARTUP_LOG = {
    "load": re.compile(r"Loaded .* of weights in ([\d.]+) s"),
    "compile": re.compile(r"Compiled \d+ programs in ([\d.]+) s"),
}


@dataclass(frozen=True)
class Row:
    """One concurrency: output tokens per second and latencies in milliseconds."""

    concurrency: int
    served_tokens_per_s: float
    reference_tokens_per_s: float
    ratio: float
    ttft_ms_median: float
    ttft_ms_p99: float
    inter_token_ms_median: float


class Server:
    """`vllm serve` as a child process, stopped on exit."""

    def __init__(self, model: Path, port: int, arguments: list[str]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = tempfile.NamedTemporaryFile("w+", suffix=".log")  # noqa: SIM115
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
        command += ["--device", "cpu", "--dtype", "float32", "--port", str(port), *arguments]
        self._start = time.perf_counter()
        self._process = subprocess.Popen(
            command, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def wait_until_ready(self) -> dict[str, float]:
        """Seconds of start-up: in all, loading, compiling, and the rest (mostly imports)."""
        while True:
            if self._process.poll() is not None:
                sys.exit(f"the server ended before it was ready:\n{self._read_log()[-3000:]}")
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        log = self._read_log()
        total = time.perf_counter() - self._start
        parts = {
            name: float(found[1]) for name, p in STARTUP_LOG.items() if (found := p.search(log))
        }
        return {"ready": total, **parts, "imports and rest": total - sum(parts.values())}

    def stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(timeout=60)

    def _read_log(self) -> str:
        return Path(self._log.name).read_text()


async def load(
    url: str, model: str, prompts: list[list[int]], new_tokens: int, concurrency: int
) -> tuple[float, list[float], list[float]]:
    """Send every prompt, `concurrency` at a time.

    Returns:
        wall seconds, seconds to first token of each request, seconds between tokens.
    """
    gate = asyncio.Semaphore(concurrency)
    first, between = [], []
    limits = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=limits) as session:

        async def one(prompt: list[int]) -> None:
            body = {
                "model": model,
                "prompt": prompt,
                "max_tokens": new_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            async with gate:
                last = start = time.perf_counter()
                count = None
                async with session.post(f"{url}/v1/completions", json=body) as reply:
                    reply.raise_for_status()
                    async for line in reply.content:
                        if not line.startswith(b"data: {"):
                            continue
                        event = json.loads(line[6:])
                        if event.get("usage"):
                            count = event["usage"]["completion_tokens"]
                        if event["choices"]:
                            now = time.perf_counter()
                            (first if last == start else between).append(now - last)
                            last = now
                if count != new_tokens:
                    raise RuntimeError(f"asked for {new_tokens} tokens, got {count}")

        start = time.perf_counter()
        await asyncio.gather(*map(one, prompts))
        return time.perf_counter() - start, first, between


def reference_seconds(model, prompts: list[list[int]], new_tokens: int, batch: int) -> float:
    """Wall seconds of transformers' `generate` over all prompts in batches of `batch`."""
    longest = max(map(len, prompts))
    start = time.perf_counter()
    for i in range(0, len(prompts), batch):
        part = prompts[i : i + batch]
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in part])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in part])
        model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=DEMO)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--requests", type=int, default=64, help="at the highest concurrency")
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args, serve_arguments = parser.parse_known_args()

    config = json.loads((args.model / "config.json").read_text())
    vocab = config.get("text_config", config)["vocab_size"]
    rng = np.random.default_rng(args.seed)

    def draw_prompts(count: int) -> list[list[int]]:
        lengths = rng.integers(max(1, args.input_len // 2), args.input_len + 1, count)
        return [rng.integers(1, vocab, n).tolist() for n in lengths]

    server = Server(args.model, args.port, serve_arguments)
    served, startup = {}, {}
    try:
        startup = server.wait_until_ready()
        for concurrency in args.concurrency:
            count = max(concurrency, args.requests * concurrency // max(args.concurrency))
            prompts = draw_prompts(count)
            asyncio.run(load(server.url, str(args.model), prompts[:2], 4, 2))
            served[concurrency] = (
                prompts,
                *asyncio.run(
                    load(server.url, str(args.model), prompts, args.output_len, concurrency)
                ),
            )
    finally:
        server.stop()

    reference = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    rows = []
    for concurrency, (prompts, seconds, first, between) in served.items():
        tokens = len(prompts) * args.output_len
        with torch.inference_mode():
            reference_seconds(reference, prompts[:1], 4, 1)
            slow = reference_seconds(reference, prompts, args.output_len, concurrency)
        rows.append(
            Row(
                concurrency,
                tokens / seconds,
                tokens / slow,
                slow / seconds,
                1e3 * float(np.median(first)),
                1e3 * float(np.quantile(first, 0.99)),
                1e3 * float(np.median(between)),
            )
        )
    report(args, startup, rows)


def report(args: argparse.Namespace, startup: dict[str, float], rows: list[Row]) -> None:
    table = Table(title=f"{args.model.name}: CPU, float32, {args.output_len} new tokens a request")
    for column in ("at once", "tokens/s", "transformers", "ratio", "TTFT ms", "p99", "ITL ms"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            str(row.concurrency),
            f"{row.served_tokens_per_s:.0f}",
            f"{row.reference_tokens_per_s:.0f}",
            f"{row.ratio:.1f} x",
            f"{row.ttft_ms_median:.0f}",
            f"{row.ttft_ms_p99:.0f}",
            f"{row.inter_token_ms_median:.1f}",
        )
    console = Console()
    console.print(table)
    console.print("start-up, s:", {name: round(value, 1) for name, value in startup.items()})
    if args.json:
        figures = {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "date": time.strftime("%Y-%m-%d"),
            "model": args.model.name,
            "startup_s": startup,
            "rows": [asdict(row) for row in rows],
        }
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
