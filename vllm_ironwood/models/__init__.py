# SPDX-License-Identifier: Apache-2.0
"""Models as pure JAX functions over (params, caches, inputs). No vLLM, no torch."""
