# SPDX-License-Identifier: Apache-2.0
"""From the scheduler's output to a dispatched program, and from its arrays to vLLM's output."""
