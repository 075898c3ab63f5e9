# SPDX-License-Identifier: Apache-2.0
"""Argument parser of `ironwood` and the dispatch to its sub-commands."""

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence

from vllm_ironwood import checkpoints
from vllm_ironwood.cli import doctor


def version() -> str:
    """Version of the installed distribution, e.g. "0.1.0"."""
    return importlib.metadata.version("vllm-ironwood")


def build_parser() -> argparse.ArgumentParser:
    """The parser; each sub-command sets `run`: parsed arguments -> exit code."""
    parser = argparse.ArgumentParser(
        prog="ironwood", description="Tools around the vllm-ironwood platform plugin."
    )
    parser.add_argument("--version", action="version", version=f"vllm-ironwood {version()}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    doctor.add_parser(subparsers)
    checkpoints.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run `ironwood ARGV` and return the exit code."""
    arguments = build_parser().parse_args(sys.argv[1:] if argv is None else argv)
    return arguments.run(arguments)
