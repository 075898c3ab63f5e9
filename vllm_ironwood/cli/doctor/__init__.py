# SPDX-License-Identifier: Apache-2.0
"""`ironwood doctor`: one screen that says what is installed, what would be used, what is wrong.

The checks are imported when the command runs, so that `ironwood --help` stays quick.
"""

import argparse
import os
import sys


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the `doctor` sub-command."""
    parser = subparsers.add_parser(
        "doctor",
        help="say what is installed, which device would be used, and what is wrong",
        description="Say what is installed, which device would be used, what is wrong and how to"
        " mend it. The exit code is 1 if anything is wrong.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print what was found; 1 if anything is wrong."""
    from rich.console import Console

    from vllm_ironwood.cli.doctor import report
    from vllm_ironwood.cli.doctor.devices import check_devices
    from vllm_ironwood.cli.doctor.environment import check_environment
    from vllm_ironwood.cli.doctor.findings import Status
    from vllm_ironwood.cli.doctor.machine import check_machine
    from vllm_ironwood.cli.doctor.plugins import check_plugins
    from vllm_ironwood.cli.doctor.software import check_software

    with Console(stderr=True).status("looking at the installation ..."):
        findings = [
            *check_software(),
            *check_plugins(),
            *check_devices(),
            *check_machine(),
            *check_environment(os.environ),
        ]
    if arguments.json:
        print(report.to_json(findings))
    else:
        width = None if sys.stdout.isatty() else 100
        report.print_text(findings, Console(highlight=False, width=width))
    return int(any(finding.status is Status.ERROR for finding in findings))
