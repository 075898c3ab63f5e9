# SPDX-License-Identifier: Apache-2.0
"""The argument types of `gated_delta_net`."""

from typing import NamedTuple

import jax


class GdnWeights(NamedTuple):
    """Weights of the mixer, stacked over the G GDN layers. channels = 2 * Hk * Dk + Hv * Dv."""

    conv: jax.Array  # [G, W, channels], tap W - 1 is the current token's
    a_log: jax.Array  # [G, Hv] float32
    dt_bias: jax.Array  # [G, Hv] float32
    norm: jax.Array  # [G, Dv]


class GdnSlots(NamedTuple):
    """Where the requests' states are. Read and write slot of a request may differ.

    All reads of a step come before all writes: one request may write the slot another one reads.
    """

    read: jax.Array  # [R] int32, used only where has_initial_state
    write: jax.Array  # [R] int32, distinct among the requests that have new tokens
    has_initial_state: jax.Array  # [R] bool, False: start from zeros and read no slot
