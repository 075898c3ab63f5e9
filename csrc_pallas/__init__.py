# SPDX-License-Identifier: Apache-2.0
"""Kernels of vllm-ironwood. They need JAX only: no vLLM, no torch.

Each kernel is a folder with the same files: `api.py` is what callers import, `reference.py` is the
plain-JAX definition of right, which also serves on the CPU.
"""
