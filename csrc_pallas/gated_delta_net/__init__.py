# SPDX-License-Identifier: Apache-2.0
"""The Gated DeltaNet mixer (arXiv 2412.06464) on a pool of state slots for a ragged batch."""

from csrc_pallas.gated_delta_net.api import GdnSlots, GdnWeights, gated_delta_net

__all__ = ["GdnSlots", "GdnWeights", "gated_delta_net"]
