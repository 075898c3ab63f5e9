# SPDX-License-Identifier: Apache-2.0
"""The counts of the slot pool are those a reader works out by hand."""

from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

from vllm_ironwood.cache.slot_pool import SlotPool, StateCounts


def keep_snapshot(pool: SlotPool, block, name: bytes) -> None:
    """What vLLM does with a full block: remember it by its hash."""
    block.set_block_hash(make_block_hash_with_group_id(name, 1), 16)
    pool.cached_block_hash_to_block.insert(block.block_hash, block)


def test_slots_snapshots_hits_and_evictions_are_counted():
    published = []
    pool = SlotPool(4, enable_caching=True, hash_block_size=16, publish=published.append)
    assert pool.counts() == StateCounts(3, 0, 0, 0, 0)
    first, second = pool.get_new_blocks(2)
    keep_snapshot(pool, first, b"first")
    assert pool.counts() == StateCounts(3, 2, 1, 0, 0)
    pool.free_blocks([first, second])
    assert pool.counts() == StateCounts(3, 0, 1, 0, 0)
    pool.touch([pool.null_block, first])
    assert pool.counts() == StateCounts(3, 1, 1, 1, 0)
    pool.free_blocks([first])
    pool.get_new_blocks(3)
    assert pool.counts() == StateCounts(3, 3, 0, 1, 1)
    assert published[-1] == pool.counts()


def test_counts_are_published_when_slots_are_taken_found_and_given_back():
    published = []
    pool = SlotPool(4, enable_caching=True, hash_block_size=16, publish=published.append)
    [block] = pool.get_new_blocks(1)
    keep_snapshot(pool, block, b"block")
    pool.touch([block])
    pool.free_blocks([block, block])
    assert pool.reset_prefix_cache()
    assert [(c.slots_in_use, c.snapshots, c.snapshot_hits) for c in published] == [
        (0, 0, 0),
        (1, 0, 0),
        (1, 1, 1),
        (0, 1, 1),
        (0, 0, 1),
    ]
