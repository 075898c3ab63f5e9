# SPDX-License-Identifier: Apache-2.0
"""Simple facts: days, months, colours, animals, capitals, opposites, and words of this project."""

from random import Random
from typing import NamedTuple

from .dialogue import Dialogue, Turn, capitalised, fill, joined, load_toml, with_article

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
SEASONS = {
    "spring": "In spring the days grow longer, and flowers and leaves begin to grow.",
    "summer": "In summer the days are long and warm, and the sun is high in the sky.",
    "autumn": "In autumn the leaves turn yellow and red, and the days grow shorter.",
    "winter": "In winter the days are short and cold, and it may snow.",
}
COLOURS = {
    "the sky": "blue", "grass": "green", "snow": "white", "a banana": "yellow",
    "a strawberry": "red", "coal": "black", "an orange": "orange", "the sea": "blue",
    "a lemon": "yellow", "milk": "white", "a tomato": "red", "a leaf": "green",
    "chocolate": "brown", "an elephant": "grey", "a frog": "green", "the sun": "yellow",
    "blood": "red", "a carrot": "orange", "a plum": "purple", "a flamingo": "pink",
}  # fmt: skip
MIXTURES = {
    ("red", "yellow"): "orange",
    ("blue", "yellow"): "green",
    ("red", "blue"): "purple",
    ("red", "white"): "pink",
    ("black", "white"): "grey",
}


class Animal(NamedTuple):
    """What is said of an animal: its kind, where it lives, what it eats, and one more thing."""

    kind: str
    home: str
    food: str
    extra: str


_TABLES = load_toml("facts.toml")
ANIMALS = {name: Animal(**entry) for name, entry in _TABLES["animals"].items()}
ANIMAL_QUESTIONS = (
    "What is {animal}?",
    "Tell me about {animal}.",
    "What do you know about {animal}?",
    "Describe {animal}.",
    "Can you describe {animal}?",
)
CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid",
    "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi", "Canada": "Ottawa",
    "Brazil": "Brasilia", "Egypt": "Cairo", "Greece": "Athens", "Norway": "Oslo",
    "Sweden": "Stockholm", "Poland": "Warsaw", "Portugal": "Lisbon", "Austria": "Vienna",
    "England": "London", "Ireland": "Dublin", "Russia": "Moscow", "Kenya": "Nairobi",
    "Mexico": "Mexico City", "Australia": "Canberra", "Finland": "Helsinki", "Peru": "Lima",
    "the United States": "Washington",
}  # fmt: skip
OPPOSITES = (
    ("hot", "cold"), ("big", "small"), ("fast", "slow"), ("day", "night"), ("up", "down"),
    ("happy", "sad"), ("old", "new"), ("light", "dark"), ("open", "closed"), ("full", "empty"),
    ("hard", "soft"), ("high", "low"), ("left", "right"), ("loud", "quiet"), ("long", "short"),
    ("wet", "dry"), ("good", "bad"), ("strong", "weak"), ("early", "late"), ("true", "false"),
)  # fmt: skip
SOUNDS = {
    "a dog": "woof", "a cat": "meow", "a cow": "moo", "a sheep": "baa", "a duck": "quack",
    "an owl": "hoot", "a bee": "buzz", "a mouse": "squeak", "a lion": "roar",
}  # fmt: skip
UNITS = {
    ("seconds", "a minute"): "60", ("minutes", "an hour"): "60", ("hours", "a day"): "24",
    ("days", "a week"): "7", ("months", "a year"): "12", ("days", "a year"): "365",
    ("weeks", "a year"): "52", ("legs", "a spider"): "8", ("legs", "a dog"): "4",
    ("sides", "a triangle"): "3", ("sides", "a square"): "4", ("letters", "the alphabet"): "26",
    ("planets", "the solar system"): "8", ("bits", "a byte"): "8",
}  # fmt: skip
GROUPS = {
    "fruits": ("apples", "pears", "bananas", "oranges", "grapes", "plums", "cherries", "lemons"),
    "vegetables": ("carrots", "peas", "beans", "potatoes", "onions", "tomatoes", "cabbages"),
    "colours": ("red", "green", "blue", "yellow", "orange", "purple", "white", "black"),
    "animals": ("cats", "dogs", "horses", "foxes", "owls", "bears", "rabbits", "whales"),
    "planets": ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"),
    "countries": ("France", "Japan", "Brazil", "Egypt", "Canada", "India", "Norway", "Kenya"),
    "sports": ("football", "tennis", "swimming", "running", "chess", "basketball"),
    "instruments": ("the piano", "the violin", "the guitar", "the flute", "the drum"),
}
COUNT_WORDS = ("three", "four", "five")
EXPLANATIONS: dict[str, str] = _TABLES["explanations"]
LANGUAGES = {
    "hello": {"French": "bonjour", "Spanish": "hola", "German": "hallo", "Italian": "ciao"},
    "thank you": {"French": "merci", "Spanish": "gracias", "German": "danke", "Italian": "grazie"},
    "yes": {"French": "oui", "Spanish": "si", "German": "ja", "Italian": "si"},
    "cat": {"French": "chat", "Spanish": "gato", "German": "Katze", "Italian": "gatto"},
}


def sequence(rng: Random) -> Dialogue:
    """What comes before or after a day or a month, and the whole list."""
    names, noun = rng.choice(((DAYS, "day"), (MONTHS, "month")))
    if rng.random() < 0.25:
        period = "week" if names is DAYS else "year"
        question = fill(
            rng,
            (
                "What are the {noun}s of the {period}?",
                "Name the {noun}s of the {period}.",
                "List the {noun}s of the {period}.",
            ),
            noun=noun,
            period=period,
        )
        return [Turn(question, f"The {noun}s of the {period} are {joined(names)}.")]
    index = rng.randrange(len(names))
    where, step = rng.choice((("after", 1), ("before", -1)))
    question = fill(
        rng,
        (
            "What {noun} comes {where} {name}?",
            "Which {noun} is {where} {name}?",
            "What comes {where} {name}?",
        ),
        noun=noun,
        where=where,
        name=names[index],
    )
    other = names[(index + step) % len(names)]
    return [Turn(question, f"The {noun} {where} {names[index]} is {other}.")]


def season(rng: Random) -> Dialogue:
    if rng.random() < 0.25:
        question = rng.choice(("What are the seasons?", "Name the four seasons."))
        return [Turn(question, f"The four seasons are {joined(list(SEASONS))}.")]
    name = rng.choice(list(SEASONS))
    question = fill(
        rng, ("What is {s}?", "Tell me about {s}.", "What happens in {s}?", "Describe {s}."), s=name
    )
    return [Turn(question, SEASONS[name])]


def colour(rng: Random) -> Dialogue:
    if rng.random() < 0.3:
        (a, b), mixed = rng.choice(list(MIXTURES.items()))
        if rng.random() < 0.5:
            a, b = b, a
        question = fill(
            rng,
            (
                "What do you get if you mix {a} and {b}?",
                "What colour do {a} and {b} make?",
                "Mix {a} and {b}.",
            ),
            a=a,
            b=b,
        )
        return [Turn(question, f"{capitalised(a)} and {b} make {mixed}.")]
    thing, shade = rng.choice(list(COLOURS.items()))
    question = fill(
        rng,
        ("What colour is {thing}?", "What color is {thing}?", "Which colour does {thing} have?"),
        thing=thing,
    )
    return [Turn(question, f"{capitalised(thing)} is {shade}.")]


def animal(rng: Random) -> Dialogue:
    name, data = rng.choice(list(ANIMALS.items()))
    phrase = with_article(name)
    choice = rng.random()
    if choice < 0.2:
        return [Turn(f"Where does {phrase} live?", f"{capitalised(phrase)} lives {data.home}.")]
    if choice < 0.4:
        return [Turn(f"What does {phrase} eat?", f"{capitalised(phrase)} eats {data.food}.")]
    life = f"It lives {data.home} and eats {data.food}."
    answer = f"{capitalised(phrase)} is {data.kind}. {life} {data.extra}"
    turns = [Turn(fill(rng, ANIMAL_QUESTIONS, animal=phrase), answer)]
    if rng.random() < 0.25:
        turns.append(Turn("What does it eat?", f"{capitalised(phrase)} eats {data.food}."))
    return turns


def capital(rng: Random) -> Dialogue:
    country, city = rng.choice(list(CAPITALS.items()))
    question = fill(
        rng,
        (
            "What is the capital of {c}?",
            "What is the capital city of {c}?",
            "Capital of {c}?",
            "Do you know the capital of {c}?",
        ),
        c=country,
    )
    turns = [Turn(question, f"The capital of {country} is {city}.")]
    if rng.random() < 0.3:
        country, city = rng.choice(list(CAPITALS.items()))
        turns.append(Turn(f"And of {country}?", f"The capital of {country} is {city}."))
    return turns


def opposite(rng: Random) -> Dialogue:
    a, b = rng.sample(rng.choice(OPPOSITES), 2)
    question = fill(
        rng,
        ("What is the opposite of {a}?", "Opposite of {a}?", "What is the contrary of {a}?"),
        a=a,
    )
    return [Turn(question, f"The opposite of {a} is {b}.")]


def sound(rng: Random) -> Dialogue:
    name, noise = rng.choice(list(SOUNDS.items()))
    question = fill(rng, ("What does {n} say?", "What sound does {n} make?"), n=name)
    return [Turn(question, f"{capitalised(name)} says {noise}.")]


def how_many(rng: Random) -> Dialogue:
    (parts, whole), number = rng.choice(list(UNITS.items()))
    verb = "does {w} have" if rng.random() < 0.4 else "are there in {w}"
    question = f"How many {parts} {verb.format(w=whole)}?"
    return [
        Turn(
            question,
            f"There are {number} {parts} in {whole}."
            if parts not in ("legs", "sides")
            else f"{capitalised(whole)} has {number} {parts}.",
        )
    ]


def examples_of(rng: Random) -> Dialogue:
    group, members = rng.choice(list(GROUPS.items()))
    number = rng.choice(COUNT_WORDS)
    chosen = rng.sample(members, COUNT_WORDS.index(number) + 3)
    question = fill(
        rng,
        ("Name {n} {g}.", "List {n} {g}.", "Can you name {n} {g}?", "Give me {n} {g}."),
        n=number,
        g=group,
    )
    return [Turn(question, f"Here are {number} {group}: {joined(chosen)}.")]


def explanation(rng: Random) -> Dialogue:
    question, answer = rng.choice(list(EXPLANATIONS.items()))
    if question.startswith("What is") and rng.random() < 0.5:
        thing = question[len("What is ") : -1]
        question = fill(
            rng,
            (
                "Tell me about {t}.",
                "Explain {t}.",
                "Can you explain {t}?",
                "Do you know what {t} is?",
                "Describe {t}.",
            ),
            t=thing,
        )
    return [Turn(question, answer)]


def translation(rng: Random) -> Dialogue:
    word, table = rng.choice(list(LANGUAGES.items()))
    language, foreign = rng.choice(list(table.items()))
    question = fill(rng, ("How do you say {w} in {l}?", "What is {w} in {l}?"), w=word, l=language)
    return [Turn(question, f"In {language}, {word} is {foreign}.")]


GENERATORS = (
    (sequence, 3.0),
    (season, 1.0),
    (colour, 2.5),
    (animal, 3.0),
    (capital, 2.5),
    (opposite, 2.0),
    (sound, 0.7),
    (how_many, 1.5),
    (examples_of, 1.5),
    (explanation, 6.0),
    (translation, 0.7),
)
