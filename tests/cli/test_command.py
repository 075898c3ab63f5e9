# SPDX-License-Identifier: Apache-2.0
"""The console script `ironwood`, run as a user runs it, and the doctor's report."""

import importlib.metadata
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from vllm_ironwood.cli.doctor import report
from vllm_ironwood.cli.doctor.findings import Finding, Status

IRONWOOD = Path(sys.executable).with_name("ironwood")

FINDINGS = [
    Finding("software", "jax", "0.10.2"),
    Finding("software", "torch", "2.13.0, CUDA", Status.WARNING, "install the CPU build"),
    Finding("plugin", "active", "another", Status.ERROR, "uninstall it"),
]


def ironwood(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    ours = ("IRONWOOD_", "JAX_", "VLLM_", "XLA_")
    environment = {name: v for name, v in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        [IRONWOOD, *arguments],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_version_is_that_of_the_distribution():
    result = ironwood("--version")
    assert result.returncode == 0
    assert result.stdout == f"vllm-ironwood {importlib.metadata.version('vllm-ironwood')}\n"


def test_help_names_every_command():
    result = ironwood("--help")
    assert result.returncode == 0
    assert "doctor" in result.stdout
    assert "make-checkpoint" in result.stdout


@pytest.mark.parametrize("arguments", [[], ["cure"]])
def test_a_missing_or_unknown_command_is_a_usage_error(arguments):
    result = ironwood(*arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_doctor_finds_nothing_wrong_in_the_environment_of_the_tests():
    result = ironwood("doctor", "--json")
    answer = json.loads(result.stdout)
    wrong = [finding for finding in answer["findings"] if finding["status"] == "error"]
    assert wrong == []
    assert answer["ok"] is True
    assert result.returncode == 0
    active = next(finding for finding in answer["findings"] if finding["name"] == "active")
    assert active["value"].startswith("vllm_ironwood.")


def test_doctor_says_on_one_screen_why_vllm_does_not_take_the_plugin():
    result = ironwood("doctor", VLLM_PLUGINS="somebody_else")
    assert result.returncode == 1
    assert "2 things are wrong" in result.stdout
    assert "not ours" in result.stdout
    assert "unset it or add" in result.stdout
    lines = result.stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


def test_report_has_each_finding_with_its_remedy_and_counts_them():
    console = Console(file=io.StringIO(), width=100)
    report.print_text(FINDINGS, console)
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert lines == [
        ["software"],
        ["ok", "jax", "0.10.2"],
        ["warn", "torch", "2.13.0,", "CUDA"],
        ["->", "install", "the", "CPU", "build"],
        ["plugin"],
        ["WRONG", "active", "another"],
        ["->", "uninstall", "it"],
        ["1", "thing", "is", "wrong,", "1", "warning"],
    ]


def test_warnings_alone_are_not_wrong():
    assert report.summary(FINDINGS[:2]) == "nothing is wrong, 1 warning"
    assert json.loads(report.to_json(FINDINGS[:2]))["ok"] is True
    assert json.loads(report.to_json(FINDINGS))["ok"] is False


def test_values_with_brackets_are_printed_as_they_are():
    console = Console(file=io.StringIO(), width=100)
    report.print_text([Finding("s", "n", "x", Status.ERROR, "pip install a[tpu]")], console)
    assert "a[tpu]" in console.file.getvalue()
