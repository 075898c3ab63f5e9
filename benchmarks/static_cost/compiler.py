# SPDX-License-Identifier: Apache-2.0
"""Compiles a function for TPU7x and keeps the schedule of every kernel in it."""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.static_cost import schedule

TOPOLOGY = "tpu7x:2x2x1"
CLOCK_HZ = 2.2e9
HBM_BYTES_PER_SECOND = 3.69e12
_DUMPED = "packed-bundles-post-ra|static-per-bundle-utilization"


@dataclass(frozen=True)
class Compiled:
    """What one compile gave.

    Attributes:
        kernels: schedules, only of kernels that the program runs.
        temp_bytes: HBM beside arguments and results, on one device.
        text: the optimised HLO.
    """

    kernels: list[schedule.Kernel]
    seconds: float
    temp_bytes: int
    text: str

    def kernel(self, name: str) -> schedule.Kernel:
        """The one kernel whose name starts with ``name``."""
        found = [kernel for kernel in self.kernels if kernel.name.startswith(name)]
        if len(found) != 1:
            raise LookupError(f"{len(found)} kernels are called {name}: {self.kernels}")
        return found[0]


@dataclass(frozen=True)
class Cost:
    """A row of a table. Times in microseconds; ``mxu_us`` is the roof of the matrix units."""

    case: str
    cycles: int
    hbm_us: float
    mxu_us: float
    estimate_us: float
    fills: int
    spills: int
    compile_s: float


def cost(
    case: str,
    *,
    cycles: int,
    hbm_bytes: int,
    compiled: Compiled,
    kernels: list[schedule.Kernel],
    mxu_us: float = 0.0,
) -> Cost:
    hbm_us = 1e6 * hbm_bytes / HBM_BYTES_PER_SECOND
    return Cost(
        case=case,
        cycles=cycles,
        hbm_us=round(hbm_us, 1),
        mxu_us=round(mxu_us, 1),
        estimate_us=round(max(hbm_us, 1e6 * cycles / CLOCK_HZ), 1),
        fills=sum(kernel.fills for kernel in kernels),
        spills=sum(kernel.spills for kernel in kernels),
        compile_s=round(compiled.seconds, 1),
    )


class Compiler:
    """Make one before JAX is imported: libtpu reads its flags once."""

    def __init__(self, dump: Path) -> None:
        self._dump = dump
        shutil.rmtree(dump, ignore_errors=True)
        dump.mkdir(parents=True)
        os.environ["LIBTPU_INIT_ARGS"] = " ".join(
            (
                f"--xla_jf_dump_to={dump}",
                "--xla_jf_dump_llo_text=true",
                f"--xla_jf_dump_llo_pass_label_regex=.*({_DUMPED}).*",
            )
        )
        self._devices: list[Any] = []

    def shape(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An argument on one device of the topology."""
        import jax
        from jax.experimental import topologies
        from jax.sharding import SingleDeviceSharding

        if not self._devices:
            self._devices = topologies.get_topology_desc(TOPOLOGY, "tpu").devices
        sharding = SingleDeviceSharding(self._devices[0])
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def compile(self, function: Callable, *arguments: Any, **jit_options: Any) -> Compiled:
        """Raises what the compiler raises: too much VMEM, SMEM or HBM, a form it cannot lower."""
        import jax

        before = set(self._dump.iterdir())
        start = time.perf_counter()
        program = jax.jit(function, **jit_options).lower(*arguments).compile()
        seconds = time.perf_counter() - start
        fresh = self._dump / f"case-{len(before)}"
        fresh.mkdir()
        for path in set(self._dump.iterdir()) - before - {fresh}:
            shutil.move(path, fresh / path.name)
        return Compiled(
            kernels=schedule.read(fresh),
            seconds=seconds,
            temp_bytes=program.memory_analysis().temp_size_in_bytes,
            text=program.as_text(),
        )
