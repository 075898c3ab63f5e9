# SPDX-License-Identifier: Apache-2.0
"""Memory, disk and cores of this machine."""

import os
import shutil
from pathlib import Path

from vllm_ironwood.cli.doctor.findings import Finding, Status

SECTION = "machine"
GIB = 2**30
LOW_MEMORY_GIB = 4  # vLLM's front end and engine take about 2 GiB before the first weight
LOW_DISK_GIB = 2  # compiled programs and logs


def check_machine() -> list[Finding]:
    """Findings on cores, memory and the disk of the cache directory."""
    cores = len(os.sched_getaffinity(0))
    return [
        Finding(SECTION, "cores", str(cores)),
        check_memory(Path("/proc/meminfo").read_text()),
        check_disk(cache_directory(), shutil.disk_usage(cache_directory()).free),
    ]


def check_memory(meminfo: str) -> Finding:
    """Host memory, from the text of /proc/meminfo (kB)."""
    fields = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    total, available = (
        int(fields[name].split()[0]) * 1024 / GIB for name in ("MemTotal", "MemAvailable")
    )
    value = f"{available:.1f} of {total:.1f} GiB available"
    if available < LOW_MEMORY_GIB:
        remedy = f"stop other programs: serving needs {LOW_MEMORY_GIB} GiB besides the weights"
        return Finding(SECTION, "memory", value, Status.WARNING, remedy)
    return Finding(SECTION, "memory", value)


def check_disk(directory: Path, free_bytes: int) -> Finding:
    """Free space where JAX and vLLM keep what they compile."""
    free = free_bytes / GIB
    value = f"{free:.1f} GiB free at {directory}"
    if free < LOW_DISK_GIB:
        return Finding(SECTION, "disk", value, Status.WARNING, "free some space")
    return Finding(SECTION, "disk", value)


def cache_directory() -> Path:
    """The nearest directory that exists on the path to the user's cache."""
    wanted = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return next(path for path in (wanted, *wanted.parents) if path.is_dir())
