# SPDX-License-Identifier: Apache-2.0
"""Compile the kernels for TPU7x without a TPU and show what they cost.

    python benchmarks/kernels.py sampler [--json FILE] [--oldest]

Makes an environment with the newest JAX and libtpu the first time (``.venv-aot``; Python 3.12
or later), or with the versions that the package pins (``--oldest``), and runs itself there.
How cycles and times are found, and what they leave out: ``benchmarks/static_cost``.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.static_cost import environment  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", choices=["sampler"], help="which kernels")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    parser.add_argument("--oldest", action="store_true", help="the JAX that the package pins")
    arguments = parser.parse_args()
    environment.enter(arguments.oldest)

    from rich.console import Console
    from rich.table import Table

    from benchmarks.static_cost import sampler
    from benchmarks.static_cost.compiler import Compiler, Cost

    families = {"sampler": sampler.costs}
    table = Table(title=f"{arguments.family}, TPU7x, one device; {environment.versions()}")
    for field in dataclasses.fields(Cost):
        table.add_column(field.name, justify="left" if field.name == "case" else "right")
    rows = []
    with tempfile.TemporaryDirectory() as dump:
        for row in families[arguments.family](Compiler(Path(dump))):
            print(f"{row.case}: {row.estimate_us} us", file=sys.stderr)
            rows.append(dataclasses.asdict(row))
            table.add_row(
                *(f"{value:,}" if value != row.case else value for value in rows[-1].values())
            )
    Console(width=120).print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
