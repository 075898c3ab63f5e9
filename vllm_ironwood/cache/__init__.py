# SPDX-License-Identifier: Apache-2.0
"""The two caches of the hybrid model as vLLM's block manager sees them."""
