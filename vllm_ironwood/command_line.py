# SPDX-License-Identifier: Apache-2.0
"""What the platform adds to the command line of vLLM."""

import argparse
import os
from collections.abc import Sequence
from typing import Any

from vllm_ironwood.checkpoint_check import check_model_argument
from vllm_ironwood.devices import DEVICE_CHOICES, DEVICE_VARIABLE

STREAMING_ERRORS = "vllm_ironwood.streaming_errors.StreamingErrorsMiddleware"


class _DeviceAction(argparse.Action):
    """Store the device and export it, so that every process of the server sees it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        os.environ[DEVICE_VARIABLE] = values


def extend(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``, look at the model argument early, and answer bad streams with 4xx.

    vLLM hands over every parser that takes engine arguments: ``vllm serve``, ``vllm
    run-batch``, ``vllm bench throughput``.
    """
    parser.add_argument(
        "--device",
        choices=DEVICE_CHOICES,
        action=_DeviceAction,
        help="Device to run on. auto (the default) is a TPU, and an error where there is none; "
        f"the CPU is never chosen unasked. The same as the variable {DEVICE_VARIABLE}.",
    )
    # argparse has no public way to find an argument that is already there.
    for action in parser._actions:
        if action.dest in ("model", "model_tag"):
            action.type = check_model_argument
        elif action.dest == "middleware":
            parser.set_defaults(middleware=[STREAMING_ERRORS, *action.default])
