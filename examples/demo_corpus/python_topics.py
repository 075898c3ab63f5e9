# SPDX-License-Identifier: Apache-2.0
"""Short explanations of Python's types, ideas, keywords and built-in functions, with examples."""

from random import Random
from typing import NamedTuple

from .dialogue import Dialogue, Turn, fill, load_toml


class Topic(NamedTuple):
    """A thing to explain: its name in a question, two sentences, and some code."""

    name: str
    first: str
    second: str
    code: str


_TABLES = load_toml("python_topics.toml")
CONCEPTS, KEYWORDS, BUILTINS = (
    tuple(Topic(**entry | {"code": entry["code"].strip()}) for entry in _TABLES[table])
    for table in ("concepts", "keywords", "builtins")
)

CONCEPT_QUESTIONS = (
    "What is {name} in Python?",
    "What is {name} in Python?",
    "What is {name}?",
    "Explain {name}.",
    "Explain {name} in Python.",
    "Can you explain {name}?",
    "Can you tell me what {name} is?",
    "Tell me about {name} in Python.",
    "What does {name} mean in Python?",
    "How do I use {name} in Python?",
    "I want to know what {name} is.",
)
KEYWORD_QUESTIONS = (
    "What does {name} do in Python?",
    "What does the {name} keyword do?",
    "What does the keyword {name} do in Python?",
    "Explain the {name} keyword.",
    "What is the {name} keyword?",
    "How do I use {name} in Python?",
    "When do I use {name}?",
    "What is {name} in Python?",
)
BUILTIN_QUESTIONS = (
    "What does {name} do in Python?",
    "What does the {name} function do?",
    "What does {name}() do?",
    "Explain the {name} function.",
    "How do I use {name}() in Python?",
    "What is the {name} function?",
    "What is {name}() in Python?",
)
EXAMPLE_QUESTIONS = (
    "Show me an example of {name}.",
    "Give me an example of {name} in Python.",
    "Write an example of {name}.",
    "Show me {name} in Python.",
)
EXAMPLE_FOLLOW_UPS = (
    "Can you give me an example?",
    "Show me an example.",
    "Give me an example, please.",
    "How does that look in code?",
    "Example?",
)
PROGRAMS = tuple((entry["questions"], entry["code"].strip()) for entry in _TABLES["programs"])
CODE_LEADS = ("Here is an example:", "Here is a small example:", "You can write it like this:")


def code_answer(rng: Random, code: str) -> str:
    return f"{rng.choice(CODE_LEADS)}\n\n```python\n{code}\n```"


def _explained(rng: Random, topic: Topic, question: str) -> Dialogue:
    answer = f"{topic.first} {topic.second}"
    if rng.random() < 0.35:
        return [Turn(question, f"{answer}\n\n{code_answer(rng, topic.code)}")]
    turns = [Turn(question, answer)]
    if rng.random() < 0.4:
        turns.append(Turn(rng.choice(EXAMPLE_FOLLOW_UPS), code_answer(rng, topic.code)))
    return turns


def concept(rng: Random) -> Dialogue:
    topic = rng.choice(CONCEPTS)
    if rng.random() < 0.15:
        return [Turn(fill(rng, EXAMPLE_QUESTIONS, name=topic.name), code_answer(rng, topic.code))]
    return _explained(rng, topic, fill(rng, CONCEPT_QUESTIONS, name=topic.name))


def keyword(rng: Random) -> Dialogue:
    topic = rng.choice(KEYWORDS)
    return _explained(rng, topic, fill(rng, KEYWORD_QUESTIONS, name=topic.name))


def builtin(rng: Random) -> Dialogue:
    topic = rng.choice(BUILTINS)
    return _explained(rng, topic, fill(rng, BUILTIN_QUESTIONS, name=topic.name))


def program(rng: Random) -> Dialogue:
    questions, code = rng.choice(PROGRAMS)
    return [Turn(rng.choice(questions), code_answer(rng, code))]


GENERATORS = ((concept, 5.0), (keyword, 3.5), (builtin, 2.5), (program, 1.5))
