# SPDX-License-Identifier: Apache-2.0
"""vLLM platform plugin that serves Qwen 3.5 MoE on TPU7x with JAX and Pallas."""


def register() -> str:
    """Entry point of ``vllm.platform_plugins``: where vLLM finds the platform class.

    vLLM calls it twice in every process before anything else, so it imports nothing.
    """
    return "vllm_ironwood.platform.IronwoodPlatform"
