# SPDX-License-Identifier: Apache-2.0
"""Counts that a worker publishes are served by the process that built its configuration."""

import types

import numpy as np
import pytest
from prometheus_client import REGISTRY

from vllm_ironwood import metrics
from vllm_ironwood.cache.slot_pool import StateCounts
from vllm_ironwood.metrics import CountBoard


@pytest.fixture(autouse=True)
def directory(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


class Config:
    """Of a vLLM configuration what the metrics look at."""

    def __init__(self, instance_id: str) -> None:
        self.instance_id = instance_id
        self.model_config = types.SimpleNamespace(served_model_name="a-model")


def served() -> dict[str, float]:
    return {
        sample.name: sample.value
        for metric in REGISTRY.collect()
        if metric.name.startswith("vllm:gdn_")
        for sample in metric.samples
        if not sample.name.endswith("_created")
    }


def test_published_counts_are_served_under_their_names(directory):
    config = Config("x1")
    metrics.watch(config)
    assert served() == {}
    board = CountBoard(config)
    board.publish(StateCounts(9, 2, 3, 40, 5))
    assert served() == {
        "vllm:gdn_state_slots": 9,
        "vllm:gdn_state_slots_in_use": 2,
        "vllm:gdn_snapshots": 3,
        "vllm:gdn_snapshot_hits_total": 40,
        "vllm:gdn_snapshot_evictions_total": 5,
    }
    board.publish(StateCounts(9, 0, 3, 41, 5))
    assert served()["vllm:gdn_state_slots_in_use"] == 0
    board.remove()
    assert served() == {}
    assert list(directory.iterdir()) == []


def test_the_metrics_are_those_of_the_newest_engine_that_lives():
    configs = [Config(name) for name in ("x1", "x2", "no engine")]
    boards = [CountBoard(config) for config in configs]
    for config in configs:
        metrics.watch(config)
    boards[0].publish(StateCounts(5, 0, 0, 0, 0))
    assert served()["vllm:gdn_state_slots"] == 5
    boards[1].publish(StateCounts(6, 0, 0, 0, 0))
    assert served()["vllm:gdn_state_slots"] == 6
    boards[1].remove()
    assert served()["vllm:gdn_state_slots"] == 5


def test_a_configuration_that_nobody_keeps_is_forgotten():
    config = Config("x1")
    metrics.watch(config)
    CountBoard(config).publish(StateCounts(5, 0, 0, 0, 0))
    del config
    assert served() == {}


def test_the_metrics_outlive_vllm_s_clearing_of_its_own():
    from vllm.v1.metrics.prometheus import unregister_vllm_metrics

    config = Config("x1")
    metrics.watch(config)
    CountBoard(config).publish(StateCounts(5, 0, 0, 0, 0))
    unregister_vllm_metrics()
    assert served()["vllm:gdn_state_slots"] == 5


def test_a_file_that_is_just_being_made_is_no_fault():
    board = CountBoard(Config("x1"))
    assert board.read() is None
    board._path.write_bytes(np.zeros(1, np.int8).tobytes())
    assert board.read() is None
