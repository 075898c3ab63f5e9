# SPDX-License-Identifier: Apache-2.0
"""The demonstration says what is wrong in one line and leaves no process behind."""

import importlib.util
import os
import signal
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

# Serves /health with 200 until it is told to stop; BODY comes first.
SERVE = """
import http.server, signal, subprocess, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args):
        pass
{body}
http.server.HTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
"""
STOP_QUIETLY = "signal.signal(signal.SIGINT, lambda *_: sys.exit(0))"
STOP_WITH_TRACEBACK = ""
NEVER_STOP = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
LEAVE_A_CHILD = STOP_QUIETLY + "\nsubprocess.Popen(['sleep', '60'])"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def demo(tmp_path, monkeypatch):
    """The script as a module, with its log and its patience reduced to those of a test."""
    spec = importlib.util.spec_from_file_location("demo", ROOT / "scripts" / "demo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LOG", tmp_path / "serve.log")
    monkeypatch.setattr(module, "STOP_SECONDS", 1.0)
    return module


@pytest.fixture
def start(demo):
    """Start a program as the server; whatever lives at the end of the test is a failure."""
    servers = []

    def start(body: str, program: str = SERVE):
        port = free_port()
        command = [sys.executable, "-c", program.format(body=body, port=port)]
        servers.append(demo.Server(command, f"http://127.0.0.1:{port}"))
        return servers[-1]

    yield start
    for server in servers:
        server.end()
        assert server._living() == []


def nothing(elapsed: float) -> None:
    pass


def test_a_server_that_answers_is_ready_and_stops_cleanly(start):
    server = start(STOP_QUIETLY)
    assert server.wait_until_ready(30, nothing) > 0
    assert server.stop() < 30


def test_a_server_that_dies_is_reported_with_its_exit_code(demo, start):
    server = start("sys.exit(7)")
    with pytest.raises(demo.DemoError, match="ended with exit code 7"):
        server.wait_until_ready(30, nothing)


def test_a_server_that_never_answers_is_given_up(demo, start):
    server = start("", "import time\ntime.sleep(60)")
    seen = []
    with pytest.raises(demo.DemoError, match=r"not ready after 0 s"):
        server.wait_until_ready(0.1, seen.append)
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (NEVER_STOP, "did not stop"),
        (LEAVE_A_CHILD, "did not stop"),
        (STOP_WITH_TRACEBACK, "traceback"),
    ],
)
def test_a_server_that_does_not_stop_cleanly_fails_the_demo(demo, start, body, reason):
    server = start(body)
    server.wait_until_ready(30, nothing)
    if reason == "traceback":
        demo.STOP_SECONDS = 30
    with pytest.raises(demo.DemoError, match=reason):
        server.stop()


def test_a_taken_port_is_named_with_a_way_out(demo):
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        port = server.server_port
        with pytest.raises(demo.DemoError, match=f"port {port} .*make demo PORT={port + 1}"):
            demo.require_free_port(port)
    demo.require_free_port(port)


def test_a_port_that_does_not_exist_is_refused(demo):
    with pytest.raises(demo.DemoError, match="port 65536"):
        demo.require_free_port(65536)


def test_a_directory_without_a_checkpoint_is_refused_before_anything_starts(demo, tmp_path):
    with pytest.raises(demo.DemoError, match=r"no config\.json"):
        demo.run(tmp_path, free_port(), 1)
    assert not demo.LOG.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_stops_the_server(demo, monkeypatch, capsys, number):
    started = []

    class Server(demo.Server):
        def __init__(self, command, url):
            super().__init__([sys.executable, "-c", "import time; time.sleep(60)"], url)
            started.append(self)
            threading.Timer(0.2, os.kill, (os.getpid(), number)).start()

    monkeypatch.setattr(demo, "Server", Server)
    monkeypatch.setattr(demo, "require_free_port", lambda port: None)
    checkpoint = ROOT / "examples" / "demo_checkpoint"
    monkeypatch.setattr(sys, "argv", ["demo.py", f"--checkpoint={checkpoint}"])
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGHUP)}
    try:
        assert demo.main() == 130
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
    assert started[0]._living() == []
    assert "interrupted" in capsys.readouterr().err


def test_a_failed_demo_ends_with_the_log_and_one_line(demo, monkeypatch, capsys):
    def run(*arguments):
        demo.LOG.write_text("".join(f"line {i}\n" for i in range(100)))
        raise demo.DemoError("it broke.")

    monkeypatch.setattr(demo, "run", run)
    monkeypatch.setattr(sys, "argv", ["demo.py"])
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGHUP)}
    try:
        assert demo.main() == 1
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("demo failed: it broke.")
    assert "line 99" in lines
    assert "line 79" not in lines
