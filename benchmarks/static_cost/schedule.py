# SPDX-License-Identifier: Apache-2.0
"""Reads libtpu's schedule dumps: bundles, loops, the arms of branches, fills and spills."""

import re
from dataclasses import dataclass
from pathlib import Path

_FILE = re.compile(
    r"^(\d+)-(.*)-\d+-(packed-bundles-post-ra|pre-delay_hlo-static-per-bundle-utilization)\.txt$"
)
_BUNDLE = re.compile(r"^\s*(0x[0-9a-f]+|0)\s*(?:[A-Z]{2})?\s*:\s*[> ]*\{")
_BRANCH = re.compile(r"sbr\.rel\s*(?:\([^)]*\))?\s*target bundleno = (\d+)")
_BOUND = re.compile(
    r"s(?:cmp|c)?[\w.]*\.(?:ge|eq|lt|gt|ne)[\w.]* %s\w+, (-?\d+) /\* loop exit test"
)


@dataclass(frozen=True)
class Region:
    """Bundles ``[first, last]``: a loop body, or what a forward branch can skip."""

    first: int
    last: int
    trips: int | None = None  # of a loop, where the bound is a constant

    @property
    def bundles(self) -> int:
        return self.last - self.first + 1

    def holds(self, other: "Region") -> bool:
        return self != other and self.first <= other.first and other.last <= self.last


@dataclass(frozen=True)
class Kernel:
    """The schedule of one kernel.

    Attributes:
        bundles: of the whole kernel, each counted once.
        loops, arms: by position; nested ones follow what holds them.
        fills, spills: registers moved from and to VMEM, in the whole kernel's text.
    """

    name: str
    bundles: int
    loops: tuple[Region, ...]
    arms: tuple[Region, ...]
    fills: int
    spills: int


def read(directory: Path) -> list[Kernel]:
    """The kernels of a dump, in the order in which they were compiled."""
    files: dict[tuple[str, str], dict[str, Path]] = {}
    for path in sorted(directory.iterdir()):
        match = _FILE.match(path.name)
        if match:
            files.setdefault((match[1], match[2]), {})[match[3]] = path
    return [
        _kernel(name, found["packed-bundles-post-ra"], found.get(_UTILISATION))
        for (_, name), found in files.items()
        if "packed-bundles-post-ra" in found and not name.startswith("<late")
    ]


_UTILISATION = "pre-delay_hlo-static-per-bundle-utilization"


def _kernel(name: str, packed: Path, utilisation: Path | None) -> Kernel:
    texts: list[str] = []
    numbers: dict[int, int] = {}
    for line in packed.read_text(errors="replace").splitlines():
        match = _BUNDLE.match(line)
        if match:
            numbers[int(match[1], 16)] = len(texts)
            texts.append(line[match.end() :])
        elif texts:
            texts[-1] += "\n" + line
    loops: dict[int, int] = {}
    arms: list[Region] = []
    for here, text in enumerate(texts):
        for target in map(int, _BRANCH.findall(text)):
            there = numbers.get(target)
            if there is None:
                continue
            if there <= here:
                loops[there] = max(here, loops.get(there, 0))
            elif there > here + 1:
                arms.append(Region(here + 1, there - 1))
    fills, spills = (0, 0) if utilisation is None else _register_traffic(utilisation)
    return Kernel(
        name=name,
        bundles=len(texts),
        loops=tuple(
            Region(first, last, _trips("".join(texts[max(first, last - 12) : last + 1])))
            for first, last in sorted(loops.items(), key=lambda item: (item[0], -item[1]))
        ),
        arms=tuple(sorted(arms, key=lambda arm: (arm.first, -arm.last))),
        fills=fills,
        spills=spills,
    )


def _trips(tail: str) -> int | None:
    bounds = _BOUND.findall(tail)
    return int(bounds[-1]) if bounds else None


def _register_traffic(path: Path) -> tuple[int, int]:
    header: list[str] = []
    fills = spills = 0
    skipped_capacities = False
    for line in path.read_text(errors="replace").splitlines():
        if "VALU" in line and "," in line:
            header = [column.strip() for column in line.split(",")]
            continue
        cells = line.split()
        if not header or len(cells) != len(header) or not all(c.isdigit() for c in cells):
            continue
        if not skipped_capacities:  # the first row says how many slots there are of each kind
            skipped_capacities = True
            continue
        row = dict(zip(header, map(int, cells), strict=True))
        fills += row.get("VLOAD:FILL", 0)
        spills += row.get("VSTORE:SPILL", 0)
    return fills, spills
