# SPDX-License-Identifier: Apache-2.0
"""Flat lists of work items, so that a loop's trip count is the step's real work.

Owner i (a request, an expert) has counts[i] items. Item number w of the flat list is item
`w - first[owner]` of its owner. Everything has static shapes; only the trip count is dynamic.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class WorkItems(NamedTuple):
    """A flat list of work items, owner after owner."""

    end: jax.Array  # [owners] int32, one past the last item of each owner
    total: jax.Array  # [] int32, the number of items


def work_items(counts: jax.Array) -> WorkItems:
    """Lists counts[i] >= 0 items for each owner i; counts is int32 [owners]."""
    end = jnp.cumsum(counts, dtype=jnp.int32)
    return WorkItems(end=end, total=end[-1])


def locate(items: WorkItems, item: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Owner of the flat `item` (int32 [], less than items.total), and its number in that owner."""
    owner = jnp.sum(items.end <= item, dtype=jnp.int32)
    first = jnp.where(owner > 0, items.end[jnp.maximum(owner - 1, 0)], 0)
    return owner, item - first


def cdiv(numerator: jax.Array, denominator: int) -> jax.Array:
    """Ceiling of numerator / denominator, for numerator >= 0."""
    return (numerator + denominator - 1) // denominator
