# SPDX-License-Identifier: Apache-2.0
"""Serve the demonstration checkpoint on the CPU, chat with it over HTTP, stop the server.

`make demo` runs this. It exits with 0 only when the server became ready, answered, and stopped
cleanly; otherwise the last lines of the server's log and one line say what went wrong.
"""

import argparse
import contextlib
import http
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

import openai

ROOT = Path(__file__).resolve().parent.parent
LOG = ROOT / ".demo" / "serve.log"
MODEL_NAME = "ironwood-demo"
QUESTIONS = ("Hello! Who are you?", "What can you do?")
MAX_ANSWER_TOKENS = 64
STARTING = "starting vllm serve (the first start compiles, which takes minutes)"
STOP_SECONDS = 20  # what a clean stop may take
LOG_LINES = 20


class DemoError(RuntimeError):
    """What is wrong and what to do, in one line."""


class Server:
    """A process in a group of its own that serves HTTP at `url` and writes to LOG."""

    def __init__(self, command: Sequence[str | Path], url: str) -> None:
        self.url = url
        LOG.parent.mkdir(exist_ok=True)
        with LOG.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_ready(self, timeout: float, progress: Callable[[float], None]) -> float:
        """Seconds until /health answers; `progress` is called with the seconds so far.

        Raises DemoError when the process ends, or is not ready after `timeout` seconds.
        """
        start = time.monotonic()
        while not self._is_healthy():
            elapsed = time.monotonic() - start
            if self._process.poll() is not None:
                raise DemoError(f"vllm serve ended with exit code {self._process.returncode}.")
            if elapsed > timeout:
                raise DemoError(f"vllm serve is not ready after {timeout:.0f} s.")
            progress(elapsed)
            time.sleep(0.25)
        return time.monotonic() - start

    def stop(self) -> float:
        """Send SIGINT, as Ctrl-C does, and return the seconds until every process has ended.

        Raises DemoError when that takes too long, leaves a process behind or ends in a traceback.
        """
        start, log_size = time.monotonic(), LOG.stat().st_size
        self._process.send_signal(signal.SIGINT)
        while living := self._living():
            if time.monotonic() - start > STOP_SECONDS:
                raise DemoError(f"processes {living} did not stop within {STOP_SECONDS} s.")
            time.sleep(0.1)
        seconds = time.monotonic() - start
        with LOG.open("rb") as log:
            log.seek(log_size)
            if b"Traceback" in log.read():
                raise DemoError("vllm serve stopped with a traceback.")
        return seconds

    def end(self) -> None:
        """Stop the server if it runs, however it takes it, and leave nothing behind."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        deadline = time.monotonic() + STOP_SECONDS
        while self._living() and time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError):  # the last one has just ended
                os.killpg(self._process.pid, signal.SIGKILL)
            time.sleep(0.02)
        self._process.wait()

    def _living(self) -> list[int]:
        """Processes of the server's group that have not ended; the server itself is reaped."""
        self._process.poll()
        living = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it ended between the two calls
                # After the name, which may hold spaces: state, parent, process group (proc(5)).
                state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
                if int(group) == self._process.pid and state != "Z":
                    living.append(int(stat.parent.name))
        return living

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as response:
                return response.status == http.HTTPStatus.OK
        except OSError:
            return False


def require_free_port(port: int) -> None:
    """Raises DemoError when another program listens on `port`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            other = port + 1 if port < 65535 else 8000
            raise DemoError(
                f"port {port} cannot be used ({reason}): choose another, make demo PORT={other}"
            ) from None


def chat(client: openai.OpenAI, question: str) -> None:
    """Ask one question, print the answer as it streams, then the speed.

    Raises DemoError when the answer is empty.
    """
    print(f"\nyou    > {question}\nmodel  > ", end="", flush=True)
    start = time.monotonic()
    first, tokens, answer = None, 0, ""
    for chunk in client.chat.completions.create(
        model=MODEL_NAME,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=MAX_ANSWER_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
    ):
        if chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
        text = chunk.choices[0].delta.content if chunk.choices else None
        if text:
            first = first or time.monotonic()
            answer += text
            print(text, end="", flush=True)
    seconds = time.monotonic() - start
    if not answer.strip():
        raise DemoError(f"the model answered {question!r} with nothing.")
    print(
        f"\n         {tokens} tokens in {seconds:.2f} s: {tokens / seconds:.1f} tokens per second,"
        f" the first after {first - start:.2f} s"
    )


def show_progress(elapsed: float) -> None:
    """Keep one line up to date on a terminal; elsewhere one line at the start has to do."""
    if sys.stdout.isatty():
        print(f"\r{STARTING} ... {elapsed:.0f} s", end="", flush=True)
    elif elapsed == 0:
        print(f"{STARTING} ...", flush=True)


def run(checkpoint: Path, port: int, timeout: float) -> None:
    """The whole demonstration. Raises DemoError; leaves no process behind."""
    if not (checkpoint / "config.json").is_file():
        raise DemoError(f"{checkpoint} holds no checkpoint (no config.json in it).")
    require_free_port(port)
    command = [Path(sys.executable).with_name("vllm"), "serve", checkpoint, "--device", "cpu"]
    command += ["--port", str(port), "--served-model-name", MODEL_NAME]
    server = Server(command, f"http://127.0.0.1:{port}")
    try:
        show_progress(0)
        ready = server.wait_until_ready(timeout, show_progress)
        end_of_line = "\n" if sys.stdout.isatty() else ""
        print(f"{end_of_line}ready after {ready:.1f} s at {server.url}")
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        for question in QUESTIONS:
            chat(client, question)
        print(f"\nstopped cleanly in {server.stop():.1f} s")
    finally:
        server.end()


def interrupt(signal_number: int, frame: object) -> None:
    """Let SIGTERM and SIGHUP unwind the program as Ctrl-C does."""
    raise KeyboardInterrupt


def main() -> int:
    """Parse the command line and run; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "examples" / "demo_checkpoint")
    parser.add_argument("--timeout", type=float, default=600, help="seconds to wait for readiness")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    LOG.unlink(missing_ok=True)
    try:
        run(arguments.checkpoint, arguments.port, arguments.timeout)
    except KeyboardInterrupt:
        print("\ndemo interrupted; the server is stopped.", file=sys.stderr)
        return 130
    except (DemoError, openai.OpenAIError) as error:
        if LOG.exists():
            lines = LOG.read_text(errors="replace").splitlines()[-LOG_LINES:]
            print("\n" + "\n".join(lines), file=sys.stderr)
        where = f" (log: {LOG})" if LOG.exists() else ""
        print(f"\ndemo failed: {error}{where}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
