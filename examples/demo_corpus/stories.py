# SPDX-License-Identifier: Apache-2.0
"""A small story grammar, jokes and short poems.

A story takes a hero, a place and a time, and one of several plots. A plot is a list of beats, each
with alternative sentences, so that the same plot gives many different stories.
"""

from random import Random

from .dialogue import Dialogue, Turn, fill, load_toml, with_article
from .persona import NAMES

HEROES = (
    "fox", "rabbit", "bear", "mouse", "owl", "cat", "dog", "frog", "duck", "turtle", "horse",
    "penguin", "bee", "robot", "dragon", "elephant",
)  # fmt: skip
TRAITS = ("small", "young", "brave", "curious", "kind", "shy", "clever", "quiet")
PLACES = (
    "in a green forest", "near a quiet lake", "on a small farm", "by the sea", "on a high hill",
    "in a warm valley", "at the edge of a village", "in an old garden",
)  # fmt: skip
TIMES = (
    "One morning",
    "One day",
    "One evening",
    "One sunny day",
    "One cold night",
    "One spring day",
)
OPENINGS = (
    "Once upon a time, there was a {trait} {hero} named {name} who lived {place}.",
    "Once upon a time, a {trait} {hero} named {name} lived {place}.",
    "There was once a {trait} {hero} called {name}, who lived {place}.",
)
THINGS = ("a red ball", "a golden key", "a blue kite", "a silver bell", "an old map", "a green hat")
SKILLS = ("swim", "sing", "dance", "climb", "read", "paint")

# Each plot is a sequence of beats; each beat is a choice of sentences with {name}, {friend},
# {thing}, {skill} and {time} in them.
PLOTS: tuple[list[list[str]], ...] = tuple(
    entry["beats"] for entry in load_toml("plots.toml")["plots"]
)
ENDINGS = ("The end.", "And they lived happily ever after.", "")
STORY_QUESTIONS = (
    "Tell me a short story.",
    "Tell me a story.",
    "Can you tell me a story?",
    "Write a short story.",
    "Please tell me a story.",
    "I would like to hear a story.",
    "Make up a story.",
    "Tell me a bedtime story.",
    "Write a story for children.",
    "Once upon a time",
)
HERO_QUESTIONS = (
    "Tell me a story about {hero}.",
    "Tell me a short story about {hero}.",
    "Write a story about {hero}.",
    "Can you tell me a story about {hero}?",
    "I want a story about {hero}.",
)
NAMED_QUESTIONS = (
    "Tell me a story about {hero} named {name}.",
    "Write a short story about {hero} called {name}.",
)
AGAIN_QUESTIONS = (
    "Tell me another story.",
    "Another one, please.",
    "One more story!",
    "Tell me another one.",
)
JOKES = (
    "Why did the computer go to the doctor? Because it had a virus.",
    "Why do programmers like the dark? Because light attracts bugs.",
    "What do you call a bear without teeth? A gummy bear.",
    "Why was the book of numbers sad? Because it had too many problems.",
    "Why did the bee get married? Because it found its honey.",
    "What is a snake's favourite language? Python, of course.",
    "Why did the list go to school? It wanted to be sorted.",
    "Why was the loop so tired? It had been running all day.",
)
JOKE_QUESTIONS = (
    "Tell me a joke.",
    "Do you know a joke?",
    "Make me laugh.",
    "Say something funny.",
    "Can you tell me a joke?",
    "Another joke, please.",
)
POEM_FIRST = (
    ("The {thing} is bright, the day is near,", "and all the birds are glad and clear."),
    ("I saw the {thing} above the sea,", "and in its light it smiled at me."),
    ("The {thing} came up, the night was gone,", "and every bird began its song."),
    ("When evening comes and day is done,", "the {thing} says goodnight to the sun."),
)
POEM_SECOND = (
    ("The wind is soft, the sky is wide,", "and I am happy here outside."),
    ("The river runs, the trees stand tall,", "and there is room here for us all."),
    ("So close your eyes and have no fear,", "for soon the morning will be here."),
    ("A little word, a little rhyme,", "can make us smile at any time."),
)
POEM_THINGS = ("moon", "star", "light", "dawn")
POEM_QUESTIONS = (
    "Write a poem.",
    "Write a short poem.",
    "Tell me a poem.",
    "Can you write a poem?",
    "Write a little poem for me.",
    "Write a poem about the {thing}.",
)


def _story(rng: Random, hero: str, name: str) -> str:
    friend = rng.choice([other for other in HEROES if other != hero and other[0] not in "aeiou"])
    values = {
        "hero": hero,
        "name": name,
        "friend": friend,
        "trait": rng.choice(TRAITS),
        "place": rng.choice(PLACES),
        "time": rng.choice(TIMES),
        "thing": rng.choice(THINGS),
        "skill": rng.choice(SKILLS),
    }
    beats = (OPENINGS, *rng.choice(PLOTS))
    sentences = [fill(rng, beat, **values) for beat in beats]
    return " ".join((*sentences, rng.choice(ENDINGS))).strip()


def story(rng: Random) -> Dialogue:
    hero, name = rng.choice(HEROES), rng.choice(NAMES)
    choice = rng.random()
    if choice < 0.5:
        question = rng.choice(STORY_QUESTIONS)
    elif choice < 0.85:
        question = fill(rng, HERO_QUESTIONS, hero=with_article(hero))
    else:
        question = fill(rng, NAMED_QUESTIONS, hero=with_article(hero), name=name)
    turns = [Turn(question, _story(rng, hero, name))]
    if rng.random() < 0.1:
        again = _story(rng, rng.choice(HEROES), rng.choice(NAMES))
        turns.append(Turn(rng.choice(AGAIN_QUESTIONS), again))
    return turns


def joke(rng: Random) -> Dialogue:
    return [Turn(rng.choice(JOKE_QUESTIONS), rng.choice(JOKES))]


def poem(rng: Random) -> Dialogue:
    thing = rng.choice(POEM_THINGS)
    first, second = rng.choice(POEM_FIRST), rng.choice(POEM_SECOND)
    lines = [line.format(thing=thing) for line in (*first, *second)]
    return [Turn(fill(rng, POEM_QUESTIONS, thing=thing), "\n".join(lines))]


GENERATORS = ((story, 9.0), (joke, 1.0), (poem, 1.2))
