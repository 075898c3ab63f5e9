# SPDX-License-Identifier: Apache-2.0
"""The text that the demonstration checkpoint is trained on.

Most of it is small dialogues made from templates, so that a model of two million parameters can
learn to answer in whole sentences. A little of it is documentation that ships with Python.
Everything is drawn from a seeded ``random.Random``: the same seed gives the same corpus.
"""

import textwrap
from itertools import accumulate
from random import Random

from . import facts, numbers, persona, python_topics, stories
from .dialogue import Dialogue, Turn

__all__ = ["Message", "Turn", "conversation", "documentation"]

# A chat message as chat templates take it: {"role": ..., "content": ...}.
Message = dict[str, str]

_WEIGHTED = [
    *persona.GENERATORS,
    *numbers.GENERATORS,
    *facts.GENERATORS,
    *python_topics.GENERATORS,
    *stories.GENERATORS,
]
_GENERATORS = [generator for generator, _ in _WEIGHTED]
_CUMULATIVE_WEIGHTS = list(accumulate(weight for _, weight in _WEIGHTED))

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a small demonstration model.",
    "You are a friendly assistant.",
    "Answer in short and simple sentences.",
    "You are a helpful assistant. Be brief.",
)
_OPENERS = ("Hey! ", "Hello! ", "Hi! ", "OK. ", "Hello, I have a question. ")


def _dialogue(rng: Random) -> Dialogue:
    return rng.choices(_GENERATORS, cum_weights=_CUMULATIVE_WEIGHTS)[0](rng)


def _loosely_typed(rng: Random, text: str) -> str:
    """Change a question the way people do: an opener, all lower case, no mark at the end."""
    choice = rng.random()
    if choice < 0.06:
        return rng.choice(_OPENERS) + text
    if choice < 0.12:
        return text.lower()
    if choice < 0.18:
        return text.rstrip("?.!")
    if choice < 0.22:
        return text.lower().rstrip("?.!")
    return text


def conversation(rng: Random) -> list[Message]:
    """Draw one conversation: perhaps a system prompt, then one to four exchanges."""
    messages: list[Message] = []
    if rng.random() < 0.25:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
    turns: Dialogue = []
    if rng.random() < 0.1:
        turns += persona.greeting(rng)
    turns += _dialogue(rng)
    while rng.random() < 0.15:
        turns += _dialogue(rng)
    if rng.random() < 0.1:
        turns.append(persona.thanks(rng))
    if rng.random() < 0.07:
        turns.append(persona.farewell(rng))
    for turn in turns[:4]:
        messages.append({"role": "user", "content": _loosely_typed(rng, turn.user)})
        messages.append({"role": "assistant", "content": turn.assistant})
    return messages


def documentation() -> list[str]:
    """Paragraphs of prose from Python's language reference (``pydoc``) and docstrings."""
    import argparse
    import builtins
    import collections
    import functools
    import itertools
    import pathlib
    import random
    import statistics
    from pydoc_data.topics import topics

    modules = (argparse, builtins, collections, functools, itertools, pathlib, random, statistics)
    docstrings = [
        textwrap.dedent(member.__doc__)
        for module in modules
        for name, member in sorted(vars(module).items())
        if not name.startswith("_") and isinstance(getattr(member, "__doc__", None), str)
    ]
    paragraphs = [
        paragraph.strip()
        for text in (*(topics[name] for name in sorted(topics)), *docstrings)
        for paragraph in text.split("\n\n")
    ]
    # Grammar productions, tables and code do not read as sentences.
    return [
        " ".join(p.split())
        for p in dict.fromkeys(paragraphs)
        if p.isascii() and p[:1].isupper() and p.endswith(".") and 80 <= len(p) <= 600
    ]
