# SPDX-License-Identifier: Apache-2.0
"""`ironwood doctor`."""

import argparse


def add_parser(subparsers) -> None:
    """Add the `doctor` sub-command."""
    parser = subparsers.add_parser("doctor", help="say what is installed and what is wrong")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the findings."""
    return 0
