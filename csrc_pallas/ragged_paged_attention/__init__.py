# SPDX-License-Identifier: Apache-2.0
"""Causal attention over a paged key/value cache for a ragged batch."""

from csrc_pallas.ragged_paged_attention.api import ragged_paged_attention

__all__ = ["ragged_paged_attention"]
