# SPDX-License-Identifier: Apache-2.0
"""GDN state metrics beside vLLM's own on ``/metrics``.

The pool of state slots lives in the engine core's process, ``/metrics`` in the API server's.
vLLM's step statistics have no place for a plugin's numbers, so the worker writes them to a
small file that both processes map, and the server reads it when somebody asks.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import AggregateStatLoggerBase

from vllm_ironwood.cache.slot_pool import StateCounts
from vllm_ironwood.refusals import WORKER_CLASS

# vLLM removes every collector with "vllm" in its name when it makes its own.
_PREFIX = "ironwood:gdn_"
_LABELS = ("model_name", "engine")
_METRICS = (
    ("slots", GaugeMetricFamily, "state_slots", "GDN state slots in the pool."),
    ("slots_in_use", GaugeMetricFamily, "state_slots_in_use", "GDN state slots held by requests."),
    ("snapshots", GaugeMetricFamily, "snapshots", "GDN states kept for prefix caching."),
    (
        "snapshot_hits",
        CounterMetricFamily,
        "snapshot_hits",
        "Requests that started from a kept GDN state.",
    ),
    (
        "snapshot_evictions",
        CounterMetricFamily,
        "snapshot_evictions",
        "Kept GDN states that made room for others.",
    ),
)


class CountBoard:
    """A mapped file that holds one engine's :class:`StateCounts`, written by its worker."""

    def __init__(self, vllm_config: VllmConfig, engine: int) -> None:
        name = f"vllm-ironwood-{os.getuid()}-{vllm_config.instance_id}-{engine}.counts"
        self._path = Path(tempfile.gettempdir()) / name
        self._counts: np.memmap | None = None

    def publish(self, counts: StateCounts) -> None:
        if self._counts is None:
            self._counts = self._map("w+")
        self._counts[:] = counts

    def read(self) -> StateCounts | None:
        """The last published counts; None while the engine has published none."""
        try:
            return StateCounts(*map(int, self._map("r")))
        except (FileNotFoundError, ValueError):  # not there, or just being made
            return None

    def remove(self) -> None:
        self._counts = None
        self._path.unlink(missing_ok=True)

    def _map(self, mode: str) -> np.memmap:
        return np.memmap(self._path, np.int64, mode, shape=(len(StateCounts._fields),))


class StateMetrics(AggregateStatLoggerBase, Collector):
    """What vLLM loads as a statistics logger; registers with Prometheus and is asked by it."""

    def __init__(self, vllm_config: VllmConfig, engine_indexes: list[int]) -> None:
        self._model = vllm_config.model_config.served_model_name
        self._boards: dict[int, CountBoard] = {}
        if vllm_config.parallel_config.worker_cls != WORKER_CLASS:
            return
        self._boards = {index: CountBoard(vllm_config, index) for index in engine_indexes}
        for collector in list(REGISTRY._collector_to_names):
            if isinstance(collector, StateMetrics):  # of an earlier engine in this process
                REGISTRY.unregister(collector)
        REGISTRY.register(self)

    def describe(self) -> Iterator[Metric]:
        """The names alone: nothing is read before there is an engine."""
        for _, family, name, text in _METRICS:
            yield family(_PREFIX + name, text, labels=_LABELS)

    def collect(self) -> Iterator[Metric]:
        read = {index: board.read() for index, board in self._boards.items()}
        for field, family, name, text in _METRICS:
            metric = family(_PREFIX + name, text, labels=_LABELS)
            for index, counts in read.items():
                if counts is not None:
                    metric.add_metric((self._model, str(index)), getattr(counts, field))
            yield metric

    def record(self, *args: object, **kwargs: object) -> None:
        """Nothing to do: the numbers are read when they are asked for."""

    def log_engine_initialized(self) -> None:
        """Nothing to say."""
