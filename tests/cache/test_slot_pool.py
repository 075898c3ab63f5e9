# SPDX-License-Identifier: Apache-2.0
"""The counts of the slot pool are those a reader works out by hand."""

import types

import numpy as np
from prometheus_client import REGISTRY
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

from vllm_ironwood.cache.slot_pool import SlotPool, StateCounts
from vllm_ironwood.metrics import CountBoard, StateMetrics
from vllm_ironwood.refusals import WORKER_CLASS


def keep_snapshot(pool: SlotPool, block, name: bytes) -> None:
    """What vLLM does with a full block: remember it by its hash."""
    block.set_block_hash(make_block_hash_with_group_id(name, 1), 16)
    pool.cached_block_hash_to_block.insert(block.block_hash, block)


def test_slots_snapshots_hits_and_evictions_are_counted():
    pool = SlotPool(4, enable_caching=True, hash_block_size=16)
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


def vllm_config(instance: str, worker: str = WORKER_CLASS):
    return types.SimpleNamespace(
        instance_id=instance,
        model_config=types.SimpleNamespace(served_model_name="a-model"),
        parallel_config=types.SimpleNamespace(worker_cls=worker),
    )


def served() -> dict[str, float]:
    return {
        sample.name: sample.value
        for metric in REGISTRY.collect()
        if metric.name.startswith("ironwood:")
        for sample in metric.samples
        if not sample.name.endswith("_created")
    }


def test_published_counts_are_served_under_their_names(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = vllm_config("x1")
    StateMetrics(config, [0])
    assert served() == {}
    board = CountBoard(config, 0)
    board.publish(StateCounts(9, 2, 3, 40, 5))
    assert served() == {
        "ironwood:gdn_state_slots": 9,
        "ironwood:gdn_state_slots_in_use": 2,
        "ironwood:gdn_snapshots": 3,
        "ironwood:gdn_snapshot_hits_total": 40,
        "ironwood:gdn_snapshot_evictions_total": 5,
    }
    board.publish(StateCounts(9, 0, 3, 41, 5))
    assert served()["ironwood:gdn_state_slots_in_use"] == 0
    board.remove()
    assert served() == {}
    assert list(tmp_path.iterdir()) == []


def test_a_later_engine_replaces_the_metrics_of_an_earlier_one(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for instance, slots in (("x1", 5), ("x2", 6)):
        StateMetrics(vllm_config(instance), [0])
        CountBoard(vllm_config(instance), 0).publish(StateCounts(slots, 0, 0, 0, 0))
        assert served()["ironwood:gdn_state_slots"] == slots


def test_engines_of_other_platforms_get_no_state_metrics(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = len(REGISTRY._collector_to_names)
    StateMetrics(vllm_config("x1", worker="another.Worker"), [0])
    assert len(REGISTRY._collector_to_names) == before


def test_a_file_that_is_just_being_made_is_no_fault(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    board = CountBoard(vllm_config("x1"), 0)
    assert board.read() is None
    board._path.write_bytes(np.zeros(1, np.int8).tobytes())
    assert board.read() is None
