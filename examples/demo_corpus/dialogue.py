# SPDX-License-Identifier: Apache-2.0
"""The unit of the corpus, and the small helpers every topic module shares."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple


class Turn(NamedTuple):
    """One exchange: what the user writes and what the model should answer."""

    user: str
    assistant: str


# A dialogue is one or more exchanges; system prompts are added when the dialogues are assembled.
Dialogue = list[Turn]


def load_toml(name: str) -> dict[str, Any]:
    """Read a table of texts that lies beside this module."""
    return tomllib.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))


def fill(rng: Random, templates: Sequence[str], **values: str) -> str:
    """Choose one of the templates and put the values into it."""
    return rng.choice(templates).format(**values)


def capitalised(text: str) -> str:
    """Upper-case the first letter only (str.capitalize would lower the rest)."""
    return text[:1].upper() + text[1:]


def with_article(noun: str) -> str:
    """Put "a" or "an" before a noun, by its first letter."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def joined(items: Sequence[str], last: str = "and") -> str:
    """Join words as in a sentence: "red, green and blue"."""
    if len(items) == 1:
        return items[0]
    return f"{', '.join(items[:-1])} {last} {items[-1]}"
