# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` as a child process, with everything a test wants to know about it."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

START_SECONDS = 180


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A server on the CPU in float32; its processes form one group of their own."""

    def __init__(self, model: Path, log: Path, *arguments: str) -> None:
        self.model = str(model)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", self.model]
        command += ["--device", "cpu", "--dtype", "float32", "--port", str(port), *arguments]
        with log.open("w") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_until_ready(self) -> "Server":
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.log}")
            if self.healthy():
                return self
            time.sleep(0.2)
        raise TimeoutError(f"not ready after {START_SECONDS} s:\n{self.log}")

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as reply:
                return reply.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def processes(self) -> list[int]:
        """Living processes of the server's session, the server itself included."""
        living = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            state, session = fields[0], int(fields[3])
            if session == self.process.pid and state != "Z":
                living.append(int(stat.parent.name))
        return living

    def stop(self, how: signal.Signals = signal.SIGTERM, timeout: float = 30) -> float:
        """Signal the server alone, as a terminal or a service manager does; seconds it took."""
        start = time.monotonic()
        self.process.send_signal(how)
        self.process.wait(timeout=timeout)
        return time.monotonic() - start

    def wait_until_gone(self, seconds: float) -> bool:
        """Whether no process of the server lives, at the latest after that time."""
        deadline = time.monotonic() + seconds
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        return not self.processes()

    def kill(self) -> None:
        """Leave nothing behind, whatever happened."""
        if self.processes():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=10)
