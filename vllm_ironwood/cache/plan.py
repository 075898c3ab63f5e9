# SPDX-License-Identifier: Apache-2.0
"""How the cache memory of a device is divided between state slots and attention pages."""

from dataclasses import dataclass

# Slot 0 is vLLM's null block: what a table holds where there is no state.
NULL_SLOTS = 1


class CacheMemoryError(ValueError):
    """The memory for the caches does not hold even one request."""


@dataclass(frozen=True)
class CachePlan:
    """Sizes of the two pools.

    Attributes:
        num_slots: GDN state slots, the null slot included.
        bytes_per_slot: one slot over all GDN layers.
        bytes_per_page: one attention page over all attention layers.
        page_bytes: bytes for attention pages in all.
        slots_per_request: slots a running request may hold at once.
    """

    num_slots: int
    slots_per_request: int
    bytes_per_slot: int
    bytes_per_page: int
    page_bytes: int

    @property
    def state_bytes(self) -> int:
        return self.num_slots * self.bytes_per_slot

    @property
    def num_pages(self) -> int:
        return self.page_bytes // self.bytes_per_page

    @property
    def max_concurrency(self) -> int:
        """Requests that have slots for all they may hold, whatever their length."""
        return (self.num_slots - NULL_SLOTS) // self.slots_per_request


def plan_caches(
    *,
    budget: int,
    bytes_per_slot: int,
    bytes_per_page: int,
    pages_per_request: int,
    max_requests: int,
    prefix_caching: bool,
    async_scheduling: bool,
    num_slots: int | None = None,
) -> CachePlan:
    """Divide ``budget`` bytes.

    A running request holds one slot. With prefix caching it holds two in a step that crosses
    a block boundary, the state it reads and the one it writes, and with asynchronous
    scheduling a third, which the step still in flight reads. With prefix caching twice as
    many slots as that keep snapshots too. Slots take at most half of the budget, so that
    neither pool starves the other; pages take no more than all requests at full length need.

    Args:
        budget: bytes for both pools.
        pages_per_request: pages of a request of the longest length served.
        max_requests: requests that may run at once.
        num_slots: the user's choice instead of the default, null slot included.

    Raises:
        CacheMemoryError: not even one request fits; says what would.
    """
    per_request = 1
    if prefix_caching:
        per_request = 3 if async_scheduling else 2
    if num_slots is None:
        wanted = NULL_SLOTS + max_requests * per_request * (2 if prefix_caching else 1)
        num_slots = min(wanted, budget // 2 // bytes_per_slot)
    if num_slots < NULL_SLOTS + per_request:
        raise CacheMemoryError(
            f"{num_slots} GDN state slots of {bytes_per_slot / 2**20:.1f} MiB do not hold one "
            f"request, which needs {NULL_SLOTS + per_request}: give the caches more memory "
            f"(now {budget / 2**30:.2f} GiB) or raise state_slots"
        )
    left = max(0, budget - num_slots * bytes_per_slot)
    useful = (pages_per_request * max_requests + 1) * bytes_per_page
    if left < 2 * bytes_per_page:
        raise CacheMemoryError(
            f"{num_slots} GDN state slots ({num_slots * bytes_per_slot / 2**30:.2f} GiB) leave "
            f"{left / 2**20:.1f} MiB of {budget / 2**30:.2f} GiB for attention pages of "
            f"{bytes_per_page / 2**20:.1f} MiB: give the caches more memory or lower state_slots"
        )
    return CachePlan(
        num_slots=num_slots,
        slots_per_request=per_request,
        bytes_per_slot=bytes_per_slot,
        bytes_per_page=bytes_per_page,
        page_bytes=min(left, useful),
    )
