# SPDX-License-Identifier: Apache-2.0
"""Write the tables of docs/supported.md from the code: ``python docs/write_supported.py``."""

from collections.abc import Iterable
from pathlib import Path

from vllm_ironwood.refused_configurations import REFUSALS
from vllm_ironwood.request_fields import HONOURED, REFUSED

PAGE = Path(__file__).parent / "supported.md"


def tables() -> dict[str, str]:
    """The tables by the name in their marker."""
    honoured = {field: who for field, who in HONOURED.items() if not field.startswith("_")}
    return {
        "refused configurations": _table(
            ("What", "Asked for by", "Instead"),
            ((row.name, row.asked, row.instead) for row in REFUSALS),
        ),
        "honoured fields": _table(
            ("Field", "Honoured by"), ((f"`{field}`", who) for field, who in honoured.items())
        ),
        "refused fields": ", ".join(f"`{field}`" for field in REFUSED),
    }


def write_into(page: str) -> str:
    """The page with what stands between each pair of markers replaced."""
    for name, table in tables().items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        if page.count(begin) != 1:
            raise ValueError(f"{PAGE.name} must have the line {begin!r} exactly once")
        before, after = page.split(begin)
        page = f"{before}{begin}{table}\n{end}{after.split(end, 1)[1]}"
    return page


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(write_into(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
