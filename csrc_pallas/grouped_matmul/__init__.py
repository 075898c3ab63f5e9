# SPDX-License-Identifier: Apache-2.0
"""The routed experts of a mixture-of-experts layer."""

from csrc_pallas.grouped_matmul.api import fused_experts

__all__ = ["fused_experts"]
