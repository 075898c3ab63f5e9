# SPDX-License-Identifier: Apache-2.0
"""What the two pools must always satisfy, and which of their memory nobody may read."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from vllm_ironwood.cache.slot_pool import SlotPool, StateCounts

_listeners: dict[int, Callable[[StateCounts], None]] = {}
_audits: "weakref.WeakValueDictionary[int, PoolAudit]" = weakref.WeakValueDictionary()


class PoolFault(RuntimeError):
    """A pool's accounting contradicts the requests' tables."""


class PoolAudit:
    """Looks at both pools from where they are kept.

    The scheduler keeps them, the worker debugs with them. Both live in the engine core's
    process; the worker's ``owner`` number, which travels in the state spec, is how
    :func:`of` finds the pools that belong to a worker.
    """

    def __init__(
        self,
        *,
        owner: int,
        pages: BlockPool,
        slots: SlotPool,
        slot_tables: dict[str, list[KVCacheBlock]],
    ) -> None:
        self._pages = pages
        self._slots = slots
        self._slot_tables = slot_tables
        _audits[owner] = self

    def check(self) -> None:
        """Every block is free, cached or held; slots are held by exactly their tables.

        Raises:
            PoolFault: names the pool, the block and the counts that disagree.
        """
        check_pool("state slot", self._slots, self._slot_tables.values())
        check_queue("page", self._pages)

    def unreadable(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids of pages and of slots that are neither held nor cached, each int32."""
        return _unreadable(self._pages), _unreadable(self._slots)


def of(owner: int) -> PoolAudit:
    """The audit of a worker's engine.

    Raises:
        RuntimeError: its scheduler is not in this process, so its pools cannot be seen.
    """
    if owner not in _audits:
        raise RuntimeError("debug_fill_nan needs the scheduler in the worker's process")
    return _audits[owner]


def listen(owner: int, listener: Callable[[StateCounts], None] | None) -> None:
    """Who is told the counts of a worker's slot pool; None: nobody any more."""
    if listener is None:
        _listeners.pop(owner, None)
    else:
        _listeners[owner] = listener


def publish(owner: int, counts: StateCounts) -> None:
    """Called by the slot pool, which knows its worker by number alone."""
    if owner in _listeners:
        _listeners[owner](counts)


def check_queue(name: str, pool: BlockPool) -> None:
    """A block is in the free queue exactly if nobody holds it, and only once.

    Raises:
        PoolFault: a block is queued twice, queued while held, or lost.
    """
    queued = Counter(block.block_id for block in pool.free_block_queue.get_all_free_blocks())
    for block in pool.blocks:
        expected = 1 if block.ref_cnt == 0 and not block.is_null else 0
        if queued[block.block_id] != expected:
            raise PoolFault(
                f"{name} {block.block_id} is {queued[block.block_id]} times in the free queue "
                f"and held {block.ref_cnt} times"
            )
    if sum(queued.values()) != pool.get_num_free_blocks():
        raise PoolFault(
            f"{name}s: {sum(queued.values())} queued, {pool.get_num_free_blocks()} free"
        )


def check_pool(name: str, pool: BlockPool, tables: Iterable[list[KVCacheBlock]]) -> None:
    """As :func:`check_queue`, and each block is held as often as it stands in ``tables``."""
    check_queue(name, pool)
    held = Counter(b.block_id for table in tables for b in table if not b.is_null)
    for block in pool.blocks:
        if not block.is_null and held[block.block_id] != block.ref_cnt:
            raise PoolFault(
                f"{name} {block.block_id} stands in {held[block.block_id]} tables "
                f"and is held {block.ref_cnt} times"
            )


def _unreadable(pool: BlockPool) -> np.ndarray:
    return np.fromiter(
        (b.block_id for b in pool.blocks if b.ref_cnt == 0 and b.block_hash is None), np.int32
    )
