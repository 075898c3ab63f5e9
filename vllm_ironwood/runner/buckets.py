# SPDX-License-Identifier: Apache-2.0
"""The grid of program shapes: how many token rows and how many request rows a step has."""

from typing import NamedTuple

# A decode step of one request still computes this many rows: below it a program costs
# the same, and every bucket less is one program less to compile.
SMALLEST = 8


class Bucket(NamedTuple):
    """The padded shape of a step: ``tokens >= requests`` rows."""

    tokens: int
    requests: int


class BucketGrid:
    """Which bucket serves which step.

    Two families, because a decode step has as many tokens as requests while prompts make
    it longer without making it wider:

    * decode: ``tokens == requests``, in steps of ``growth`` up to ``max_requests``;
    * mixed: every token count up to ``max_tokens`` in steps of ``growth``, with room for
      ``max_requests`` requests (kernels do no work for rows without a request).
    """

    def __init__(self, *, max_tokens: int, max_requests: int, growth: int) -> None:
        max_requests = min(max_requests, max_tokens)
        self._decode = _geometric(SMALLEST, max_requests, growth)
        self._mixed = _geometric(max(max_requests, SMALLEST), max_tokens, growth)
        self._max_requests = self._decode[-1]

    def __iter__(self):
        seen = dict.fromkeys(Bucket(n, n) for n in self._decode)
        seen.update(dict.fromkeys(Bucket(n, self._max_requests) for n in self._mixed))
        return iter(seen)

    def pick(self, num_tokens: int, num_requests: int) -> Bucket:
        """The smallest bucket that holds the step.

        Raises:
            ValueError: the step is larger than the grid was built for.
        """
        for n in self._decode:
            if num_tokens <= n:
                return Bucket(n, n)
        for n in self._mixed:
            if num_tokens <= n and num_requests <= self._max_requests:
                return Bucket(n, self._max_requests)
        raise ValueError(
            f"a step of {num_tokens} tokens and {num_requests} requests is larger than the "
            f"largest program ({self._mixed[-1]} tokens, {self._max_requests} requests)"
        )


def _geometric(first: int, last: int, growth: int) -> list[int]:
    """``first, first * growth, ...``, ending in the first value that reaches ``last``."""
    sizes = [first]
    while sizes[-1] < last:
        sizes.append(min(sizes[-1] * growth, _round_up(last, SMALLEST)))
    return sizes


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
