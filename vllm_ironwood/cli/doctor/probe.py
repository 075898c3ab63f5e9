# SPDX-License-Identifier: Apache-2.0
"""Run a few lines of Python in a process of their own, where they may crash, hang or print.

Importing torch, vLLM or a TPU runtime can do all three on a broken installation, which is when the
doctor is asked.
"""

import json
import subprocess
import sys
from typing import Any

TIMEOUT_SECONDS = 120


class ProbeError(RuntimeError):
    """The probe did not answer. Its text is one line: the last one the process wrote."""


def run_probe(program: str, timeout: float = TIMEOUT_SECONDS) -> Any:
    """Run `program` and decode the last line of its output as JSON.

    Raises ProbeError when it fails, takes longer than `timeout` seconds, or prints no JSON.
    """
    try:
        result = subprocess.run(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ProbeError(f"no answer within {timeout:g} s") from None
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        raise ProbeError(lines[-1])
    lines = result.stdout.strip().splitlines() or [""]
    try:
        return json.loads(lines[-1])
    except json.JSONDecodeError:
        raise ProbeError(f"unexpected answer: {lines[-1]!r}") from None
