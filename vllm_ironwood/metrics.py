# SPDX-License-Identifier: Apache-2.0
"""GDN state metrics beside vLLM's own, on ``/metrics`` and in ``LLM.get_metrics()``.

The pool of state slots lives in the engine core's process, the metrics in that of the API
server or of the ``LLM``. vLLM's step statistics have no place for a plugin's numbers, so the
pool's changes are written to a small file that both processes map, read when somebody asks.
"""

import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vllm_ironwood.cache.slot_pool import StateCounts

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# ``LLM.get_metrics()`` passes on nothing but names that begin with "vllm:".
_PREFIX = "vllm:gdn_"
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

    def __init__(self, vllm_config: "VllmConfig") -> None:
        name = f"vllm-ironwood-{os.getuid()}-{vllm_config.instance_id}.counts"
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


class StateMetrics(Collector):
    """Asked by Prometheus' registry; shows the newest engine of this process that has counts.

    Every configuration that vLLM builds is watched, since nothing tells which of them an
    engine is made from. vLLM's own metrics are those of the newest engine, too.
    """

    def __init__(self) -> None:
        self._configs: weakref.WeakValueDictionary[str, VllmConfig] = weakref.WeakValueDictionary()

    def watch(self, vllm_config: "VllmConfig") -> None:
        self._configs[vllm_config.instance_id] = vllm_config

    def describe(self) -> Iterator[Metric]:
        """The names alone: nothing is read before there is an engine."""
        for _, family, name, text in _METRICS:
            yield family(_PREFIX + name, text, labels=_LABELS)

    def collect(self) -> Iterator[Metric]:
        for config in reversed(list(self._configs.values())):
            counts = CountBoard(config).read()
            if counts is not None:
                labels = (config.model_config.served_model_name, "0")
                yield from _as_metrics(counts, labels)
                return


def _as_metrics(counts: StateCounts, labels: tuple[str, str]) -> Iterator[Metric]:
    for field, family, name, text in _METRICS:
        metric = family(_PREFIX + name, text, labels=_LABELS)
        metric.add_metric(labels, getattr(counts, field))
        yield metric


_STATE_METRICS = StateMetrics()
REGISTRY.register(_STATE_METRICS)


def watch(vllm_config: "VllmConfig") -> None:
    """Let this process's metrics show the engine that is made from this configuration."""
    _STATE_METRICS.watch(vllm_config)
