# SPDX-License-Identifier: Apache-2.0
"""Counting and the arithmetic of small numbers."""

from random import Random

from .dialogue import Dialogue, Turn, capitalised, fill, joined

WORDS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
]

SUM_QUESTIONS = (
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "{a} + {b}",
    "{a} + {b} = ?",
    "Add {a} and {b}.",
    "How much is {a} plus {b}?",
    "Can you add {a} and {b}?",
    "Calculate {a} + {b}.",
)
SUM_QUESTIONS_IN_WORDS = (
    "What is {a} plus {b}?",
    "Add {a} and {b}.",
    "How much is {a} plus {b}?",
)
DIFFERENCE_QUESTIONS = (
    "What is {a} - {b}?",
    "What is {a} minus {b}?",
    "{a} - {b}",
    "How much is {a} minus {b}?",
    "Take {b} away from {a}.",
    "Calculate {a} - {b}.",
)
PRODUCT_QUESTIONS = (
    "What is {a} * {b}?",
    "What is {a} times {b}?",
    "{a} * {b}",
    "Multiply {a} by {b}.",
    "How much is {a} times {b}?",
)


def addition(rng: Random) -> Dialogue:
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    if rng.random() < 0.25 and a + b < len(WORDS):
        question = fill(rng, SUM_QUESTIONS_IN_WORDS, a=WORDS[a], b=WORDS[b])
        return [Turn(question, f"{capitalised(WORDS[a])} plus {WORDS[b]} is {WORDS[a + b]}.")]
    turns = [Turn(fill(rng, SUM_QUESTIONS, a=a, b=b), f"{a} plus {b} is {a + b}.")]
    if rng.random() < 0.3:
        c = rng.randint(1, 5)
        follow_up = fill(rng, ("Now add {c}.", "And plus {c}?", "Add {c} to that."), c=c)
        turns.append(Turn(follow_up, f"{a + b} plus {c} is {a + b + c}."))
    return turns


def subtraction(rng: Random) -> Dialogue:
    a = rng.randint(0, 15)
    b = rng.randint(0, a)
    return [Turn(fill(rng, DIFFERENCE_QUESTIONS, a=a, b=b), f"{a} minus {b} is {a - b}.")]


def multiplication(rng: Random) -> Dialogue:
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    return [Turn(fill(rng, PRODUCT_QUESTIONS, a=a, b=b), f"{a} times {b} is {a * b}.")]


def counting(rng: Random) -> Dialogue:
    n = rng.randint(3, 20)
    if rng.random() < 0.25:
        n = min(n, 10)
        question = fill(rng, ("Count down from {n}.", "Count backwards from {n}."), n=n)
        return [Turn(question, f"{', '.join(str(i) for i in range(n, 0, -1))}. Done!")]
    name = WORDS[n] if rng.random() < 0.5 else str(n)
    question = fill(
        rng,
        (
            "Count to {n}.",
            "Can you count to {n}?",
            "Please count from one to {n}.",
            "Count from 1 to {n}.",
        ),
        n=name,
    )
    return [Turn(question, f"{', '.join(str(i) for i in range(1, n + 1))}.")]


def parity(rng: Random) -> Dialogue:
    n = rng.randint(0, 30)
    even = n % 2 == 0
    kind = rng.choice(("even", "odd"))
    reply = "Yes" if even == (kind == "even") else "No"
    question = fill(
        rng,
        ("Is {n} {kind}?", "Is {n} an {kind} number?", "Is the number {n} {kind}?"),
        n=n,
        kind=kind,
    )
    return [Turn(question, f"{reply}, {n} is {'even' if even else 'odd'}.")]


def comparison(rng: Random) -> Dialogue:
    a, b = rng.sample(range(21), 2)
    if rng.random() < 0.5:
        question = fill(
            rng, ("Which is bigger, {a} or {b}?", "Which number is larger: {a} or {b}?"), a=a, b=b
        )
        return [Turn(question, f"{max(a, b)} is bigger than {min(a, b)}.")]
    question = fill(
        rng, ("Which is smaller, {a} or {b}?", "Which number is less: {a} or {b}?"), a=a, b=b
    )
    return [Turn(question, f"{min(a, b)} is smaller than {max(a, b)}.")]


def neighbours(rng: Random) -> Dialogue:
    n = rng.randint(1, 19)
    if rng.random() < 0.5:
        question = fill(
            rng, ("What number comes after {n}?", "Which number is next after {n}?"), n=n
        )
        return [Turn(question, f"The number after {n} is {n + 1}.")]
    return [Turn(f"What number comes before {n}?", f"The number before {n} is {n - 1}.")]


def spelling(rng: Random) -> Dialogue:
    n = rng.randint(0, 20)
    question = fill(
        rng,
        ("How do you write {n} as a word?", "Spell the number {n}.", "Write {n} in words."),
        n=n,
    )
    return [Turn(question, f"{capitalised(WORDS[n])}.")]


def even_numbers(rng: Random) -> Dialogue:
    start, kind = rng.choice(((1, "odd"), (2, "even")))
    count = rng.randint(3, 8)
    values = joined([str(start + 2 * i) for i in range(count)])
    question = fill(
        rng, ("Name {n} {kind} numbers.", "List {n} {kind} numbers."), n=WORDS[count], kind=kind
    )
    return [Turn(question, f"Here are {WORDS[count]} {kind} numbers: {values}.")]


GENERATORS = (
    (addition, 4.5),
    (subtraction, 2.0),
    (multiplication, 2.0),
    (counting, 3.0),
    (parity, 1.5),
    (comparison, 1.5),
    (neighbours, 1.0),
    (spelling, 0.7),
    (even_numbers, 0.7),
)
