# SPDX-License-Identifier: Apache-2.0
"""Hands out GDN state slots with vLLM's own manager, from a pool of their own."""

from functools import partial

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import MambaManager
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from vllm_ironwood.cache import audit
from vllm_ironwood.cache.slot_pool import SlotPool
from vllm_ironwood.cache.state_spec import GdnStateSpec


class GdnStateManager(MambaManager):
    """vLLM's state manager over a private :class:`BlockPool` of state slots.

    The block ids it puts into a request's table are slot ids. Sharing, eviction and
    hashing of snapshots are vLLM's; only *where the blocks come from* differs.
    """

    # A state exists only at the end of a step, never inside a block.
    supports_fine_grained_hash_lookup = False

    def __init__(self, kv_cache_spec: GdnStateSpec, block_pool: BlockPool, **kwargs) -> None:
        slots = SlotPool(
            kv_cache_spec.num_slots,
            enable_caching=kwargs["enable_caching"],
            hash_block_size=block_pool.hash_block_size,
            publish=partial(audit.publish, kv_cache_spec.owner),
        )
        super().__init__(kv_cache_spec, slots, **kwargs)
        self._page_pool = block_pool
        self.audit = audit.PoolAudit(
            owner=kv_cache_spec.owner,
            pages=block_pool,
            slots=slots,
            slot_tables=self.req_to_blocks,
        )

    def get_num_blocks_to_allocate(self, *args, **kwargs) -> int:
        """Blocks to take from the *page* pool: none, or more than it has when slots run out.

        The caller compares the sum over all groups with the free pages; answering more
        than the pool holds is how a manager says "does not fit", which makes the
        scheduler wait or preempt.
        """
        slots_needed = super().get_num_blocks_to_allocate(*args, **kwargs)
        if slots_needed > self.block_pool.get_num_free_blocks():
            return self._page_pool.num_gpu_blocks + 1
        return 0

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        """Free the request's slots here: the caller would return them to the page pool.

        A step in flight may still write such a slot. That is harmless: programs run in
        the order they were dispatched, so whoever gets the slot next writes after it.
        """
        slots = super().pop_blocks_for_free(request_id)
        self.block_pool.free_blocks(reversed(slots))
        return []


def register_state_spec() -> None:
    """Tell vLLM which manager serves :class:`GdnStateSpec` (safe to call again)."""
    KVCacheSpecRegistry.register(GdnStateSpec, GdnStateManager)
