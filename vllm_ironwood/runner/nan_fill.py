# SPDX-License-Identifier: Apache-2.0
"""Debugging: memory that belongs to nobody holds NaN, so that reading it shows."""

import jax
import jax.numpy as jnp
import numpy as np

from vllm_ironwood.cache.audit import PoolAudit
from vllm_ironwood.models.qwen3_5_moe.model import Caches


def check_and_fill(audit: PoolAudit, caches: Caches) -> Caches:
    """Check the pools, then fill what nobody may read. Costs a pass over all cache memory.

    Raises:
        PoolFault: see :meth:`PoolAudit.check`.
    """
    audit.check()
    pages, slots = audit.unreadable()
    page_mask = np.zeros(caches.pages.shape[1], bool)
    slot_mask = np.zeros(caches.conv_state.shape[1], bool)
    page_mask[pages] = slot_mask[slots] = True
    return _fill(caches, page_mask, slot_mask)


@jax.jit(donate_argnames=("caches",))
def _fill(caches: Caches, page_mask: jax.Array, slot_mask: jax.Array) -> Caches:
    def fill(array: jax.Array, mask: jax.Array) -> jax.Array:
        mask = mask.reshape(1, -1, *(1,) * (array.ndim - 2))
        return jnp.where(mask, jnp.asarray(jnp.nan, array.dtype), array)

    return Caches(
        pages=fill(caches.pages, page_mask),
        conv_state=fill(caches.conv_state, slot_mask),
        recurrent_state=fill(caches.recurrent_state, slot_mask),
    )
