# SPDX-License-Identifier: Apache-2.0
"""Random checkpoints of any size, for tests and benchmarks: `ironwood make-checkpoint`."""

from vllm_ironwood.checkpoints.command import add_parser
from vllm_ironwood.checkpoints.maker import make_checkpoint

__all__ = ["add_parser", "make_checkpoint"]
