# SPDX-License-Identifier: Apache-2.0
"""The console script `ironwood`. Importing this package imports neither jax nor vllm nor torch."""

from vllm_ironwood.cli.main import main

__all__ = ["main"]
