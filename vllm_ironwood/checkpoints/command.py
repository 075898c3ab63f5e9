# SPDX-License-Identifier: Apache-2.0
"""The sub-command `ironwood make-checkpoint`."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from vllm_ironwood.checkpoints.sizes import SIZES


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the `make-checkpoint` sub-command."""
    parser = subparsers.add_parser(
        "make-checkpoint",
        help="write a random Qwen 3.5 MoE checkpoint",
        description="Write a checkpoint with random weights and a working byte-level tokenizer."
        " The same size, seed and settings give the same weights, in whichever layout.",
        epilog="sizes:\n" + "\n".join(f"  {name:8}{size.about}" for name, size in SIZES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory to write")
    parser.add_argument("--size", choices=SIZES, default="tiny", help="default: %(default)s")
    parser.add_argument(
        "--layout",
        choices=("flat", "nested"),
        default="flat",
        help="flat: the text model alone; nested: inside a vision-language model (default: flat)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: %(default)s")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument(
        "--experts",
        choices=("fused", "separate"),
        default="fused",
        help="one tensor for all experts of a layer, or one for each matrix (default: fused)",
    )
    parser.add_argument("--shards", type=int, default=1, metavar="N", help="number of files")
    parser.add_argument(
        "--tie-word-embeddings", action="store_true", help="use the embedding as the head"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_setting,
        metavar="FIELD=VALUE",
        dest="overrides",
        help="another value for a field of config.json, e.g. num_hidden_layers=6 (repeatable)",
    )
    parser.add_argument("--force", action="store_true", help="write over an existing checkpoint")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the checkpoint and say what was written; 1 with one line if it cannot be."""
    from vllm_ironwood.checkpoints.maker import make_checkpoint

    try:
        summary = make_checkpoint(
            arguments.directory,
            size=arguments.size,
            layout=arguments.layout,
            seed=arguments.seed,
            dtype=arguments.dtype,
            experts=arguments.experts,
            shards=arguments.shards,
            tie_word_embeddings=arguments.tie_word_embeddings,
            overrides=dict(arguments.overrides),
            force=arguments.force,
        )
    except (OSError, ValueError) as error:
        print(f"ironwood make-checkpoint: {error}", file=sys.stderr)
        return 1
    print(summary)
    return 0


def _setting(text: str) -> tuple[str, Any]:
    """FIELD=VALUE, the value as JSON."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIELD=VALUE")
    try:
        return name, json.loads(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"the value in {text!r} is not JSON") from error
