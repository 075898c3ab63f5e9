# SPDX-License-Identifier: Apache-2.0
"""The pool of GDN state slots: vLLM's block pool, with counts of what its snapshots do."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock


class StateCounts(NamedTuple):
    """What a pool of GDN state slots holds now, and has done since it was made."""

    slots: int  # that may be handed out (the null slot is none)
    slots_in_use: int  # held by requests
    snapshots: int  # states kept for later requests, those that requests hold too included
    snapshot_hits: int  # times that a request started from a snapshot
    snapshot_evictions: int  # times that a snapshot made room for another state


class SlotPool(BlockPool):
    """vLLM's pool; its blocks are slots.

    Args:
        publish: told the counts whenever a slot is taken or given back. That is rare (a step
            that only decodes does neither) and the last one leaves the counts right at rest.
    """

    def __init__(
        self,
        num_slots: int,
        *,
        enable_caching: bool,
        hash_block_size: int,
        publish: Callable[[StateCounts], None],
    ) -> None:
        super().__init__(
            num_gpu_blocks=num_slots,
            enable_caching=enable_caching,
            hash_block_size=hash_block_size,
            enable_kv_cache_events=False,
        )
        self._hits = 0
        self._evictions = 0
        self._publish = publish
        publish(self.counts())

    def counts(self) -> StateCounts:
        slots = self.num_gpu_blocks - 1
        return StateCounts(
            slots=slots,
            slots_in_use=slots - self.get_num_free_blocks(),
            snapshots=len(self.cached_block_hash_to_block),
            snapshot_hits=self._hits,
            snapshot_evictions=self._evictions,
        )

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """A request was given these cached blocks."""
        self._hits += sum(not block.is_null for block in blocks)
        super().touch(blocks)
        self._publish(self.counts())

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        blocks = super().get_new_blocks(num_blocks)
        self._publish(self.counts())
        return blocks

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        super().free_blocks(ordered_blocks)
        self._publish(self.counts())

    def reset_prefix_cache(self) -> bool:
        done = super().reset_prefix_cache()
        self._publish(self.counts())
        return done

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> bool:
        evicted = super()._maybe_evict_cached_block(block)
        self._evictions += evicted
        return evicted
