# SPDX-License-Identifier: Apache-2.0
"""Findings as one screen of text, or as JSON."""

import dataclasses
import itertools
import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vllm_ironwood.cli.doctor.findings import Finding, Status

MARKS = {
    Status.OK: ("ok", "green"),
    Status.WARNING: ("warn", "bold yellow"),
    Status.ERROR: ("WRONG", "bold red"),
}


def summary(findings: Sequence[Finding]) -> str:
    """The closing line, e.g. "1 thing is wrong, 2 warnings"."""
    errors = sum(finding.status is Status.ERROR for finding in findings)
    warnings = sum(finding.status is Status.WARNING for finding in findings)
    wrong = {0: "nothing is wrong", 1: "1 thing is wrong"}.get(errors, f"{errors} things are wrong")
    return wrong + {0: "", 1: ", 1 warning"}.get(warnings, f", {warnings} warnings")


def print_text(findings: Sequence[Finding], console: Console) -> None:
    """One table: sections with their titles, a row for each finding, its remedy in the next."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for section, group in itertools.groupby(findings, key=lambda finding: finding.section):
        table.add_row("", Text(section, style="bold"), "")
        for finding in group:
            mark, style = MARKS[finding.status]
            table.add_row(Text(mark, style=style), Text(f"  {finding.name}"), Text(finding.value))
            if finding.remedy:
                table.add_row("", "", Text(f"-> {finding.remedy}", style=style))
    console.print(table)
    console.print(Text(summary(findings), style="bold"))


def to_json(findings: Sequence[Finding]) -> str:
    """An object with `ok` (no error) and the findings in order."""
    return json.dumps(
        {
            "ok": all(finding.status is not Status.ERROR for finding in findings),
            "findings": [dataclasses.asdict(finding) for finding in findings],
        },
        indent=2,
    )
