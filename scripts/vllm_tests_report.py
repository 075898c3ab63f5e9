# SPDX-License-Identifier: Apache-2.0
"""docs/vllm_tests.md from the kept results of scripts/vllm_tests.py."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vllm_tests_plugin import reason_for

OUTCOMES = ("passed", "failed", "deselected", "skipped", "not run")

INTRODUCTION = """\
# vLLM's own tests

<!-- Written by scripts/vllm_tests.py; edit scripts/vllm_tests.toml instead. -->

The tests of vLLM {version}'s source release for sampling and for the text entry points, run on this
plugin on the CPU with `examples/demo_checkpoint`. The tests are not edited: the names of models in
them lead to that checkpoint, and the arguments of engines and servers are rewritten (`device: cpu`,
at most 2048 tokens of context and 16 requests at once, float32 for float16, no LoRA adapters).
A compile after the start is fatal in all of them.

```bash
.venv/bin/python scripts/vllm_tests.py                 # everything
.venv/bin/python scripts/vllm_tests.py --only sample/  # some files
```

Deselected tests cannot pass and are not started; failed ones were run. Each has its reason below.
Skipped ones are skipped by vLLM itself, with the reason that it gives.
"""


class Planned(Protocol):
    """What the report needs of an entry of the plan."""

    path: str
    deselect: Mapping[str, str]
    fails: Mapping[str, str]


@dataclass(frozen=True)
class Result:
    test: str
    outcome: str  # one of OUTCOMES
    message: str


def read(results: Path) -> dict[str, Result]:
    """Test -> its result. A failure of the test or its tear-down outlives what comes after it."""
    found: dict[str, Result] = {}
    if results.exists():
        for line in results.read_text().splitlines():
            result = Result(**json.loads(line))
            before = found.get(result.test)
            if before is None or before.outcome != "failed":
                found[result.test] = result
    return found


def count(results: Mapping[str, Result]) -> Counter[str]:
    return Counter(result.outcome for result in results.values())


def summary(file: Planned, results: Path) -> str:
    """The counts of one file and its unexplained outcomes, a line each."""
    found = read(results)
    counts = count(found)
    line = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
    return "\n  ".join([line, *faults(file, found)])


def faults(file: Planned, results: Mapping[str, Result]) -> list[str]:
    """Outcomes that contradict the plan, and entries of the plan that fit no test."""
    if not results:
        return [f"{file.path}: no results; run the command with --only {file.path}"]
    lines = []
    for result in results.values():
        reason = reason_for(result.test, file.fails)
        where = f"{file.path}::{result.test}"
        if result.outcome == "not run":
            lines.append(f"{where} was not reached; run it again with a longer --timeout")
        elif result.outcome == "failed" and reason is None:
            lines.append(f"{where} failed without a reason in the plan: {result.message}")
        elif result.outcome == "passed" and reason is not None:
            lines.append(f"{where} passed; take its reason out of the plan")
    for pattern in (*file.deselect, *file.fails):
        if not any(reason_for(test, {pattern: pattern}) for test in results):
            lines.append(f"{file.path}: {pattern} fits no test; take it out of the plan")
    return lines


def cell(text: str) -> str:
    """Text for a cell of a table: in one line, its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def reasons(file: Planned, results: Mapping[str, Result]) -> list[tuple[str, str, int, str]]:
    """(pattern or test, outcome, tests, reason) of each that did not pass, as the plan groups."""
    grouped: dict[tuple[str, str, str], int] = {}
    for result in results.values():
        if result.outcome in ("passed", "not run"):
            continue
        table = {"deselected": file.deselect, "failed": file.fails}.get(result.outcome, {})
        for pattern, reason in table.items():
            if reason_for(result.test, {pattern: reason}):
                key = (pattern, result.outcome, reason)
                break
        else:
            function = result.test.partition("[")[0]
            key = (function, result.outcome, result.message.removeprefix("Skipped: "))
        grouped[key] = grouped.get(key, 0) + 1
    return [(name, outcome, n, reason) for (name, outcome, reason), n in grouped.items()]


def write(
    version: str, files: Iterable[tuple[Planned, Path]], not_run: Mapping[str, str]
) -> tuple[str, list[str]]:
    """The page, and what contradicts the plan."""
    read_files = [(file, read(results)) for file, results in files]
    total: Counter[str] = sum((count(results) for _, results in read_files), Counter())
    wrong = [line for file, results in read_files for line in faults(file, results)]
    lines = [INTRODUCTION.format(version=version), "## Files", ""]
    lines += ["| File under `tests/` | " + " | ".join(OUTCOMES[:4]) + " |"]
    lines += ["| --- " + "| ---: " * 4 + "|"]
    for name, counts in [
        *((f"`{file.path}`", count(results)) for file, results in read_files),
        ("**all**", total),
    ]:
        lines.append(f"| {name} | " + " | ".join(str(counts[o]) for o in OUTCOMES[:4]) + " |")
    lines += ["", "## Tests that did not pass, and why", ""]
    lines += ["| Test | Outcome | Tests | Reason |", "| --- | --- | ---: | --- |"]
    for file, results in read_files:
        for name, outcome, number, reason in reasons(file, results):
            lines.append(f"| `{file.path}::{cell(name)}` | {outcome} | {number} | {cell(reason)} |")
    lines += ["", "## Files that are not run", "", "| File | Reason |", "| --- | --- |"]
    lines += [f"| `{path}` | {cell(reason)} |" for path, reason in not_run.items()]
    return "\n".join(lines) + "\n", wrong
