# SPDX-License-Identifier: Apache-2.0
"""Ragged batches for tests: what each request has and gets, padded to fixed shapes."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from csrc_pallas.ragged_batch import RaggedBatch


class Request(NamedTuple):
    """One request's part in a step."""

    context: int  # tokens in the caches before the step
    new: int  # tokens of the step


class Step(NamedTuple):
    """Requests of one step: the decodes, each with one new token, come first."""

    requests: list[Request]
    num_decodes: int

    @property
    def num_tokens(self) -> int:
        return sum(request.new for request in self.requests)

    def rows(self) -> list[slice]:
        """Rows of the token axis of each request."""
        ends = np.cumsum([request.new for request in self.requests], dtype=int)
        return [
            slice(end - request.new, end) for request, end in zip(self.requests, ends, strict=True)
        ]

    def batch(self, max_requests: int) -> RaggedBatch:
        padding = max_requests - len(self.requests)
        new = [request.new for request in self.requests] + [0] * padding
        context = [request.context for request in self.requests] + [0] * padding
        return RaggedBatch(
            query_start=jnp.asarray(np.cumsum([0, *new]), jnp.int32),
            context_len=jnp.asarray(context, jnp.int32),
            num_decodes=jnp.int32(self.num_decodes),
            num_requests=jnp.int32(len(self.requests)),
        )


def step(decodes: list[int], others: list[tuple[int, int]]) -> Step:
    """Decodes by their context, others by (context, new)."""
    requests = [Request(context, 1) for context in decodes]
    return Step(requests + [Request(*other) for other in others], len(decodes))


@st.composite
def steps(draw, *, max_tokens: int, max_requests: int, contexts: list[int], news: list[int]):
    """Any mix of decodes and others that fits; lengths are drawn from the two lists."""
    num_decodes = draw(st.integers(0, min(max_requests, max_tokens)))
    decodes = [draw(st.sampled_from(contexts)) for _ in range(num_decodes)]
    others: list[tuple[int, int]] = []
    room = max_tokens - num_decodes
    for _ in range(draw(st.integers(0, max_requests - num_decodes))):
        fitting = [new for new in news if new <= room]
        new = draw(st.sampled_from(fitting))
        others.append((draw(st.sampled_from(contexts)), new))
        room -= new
    return step(decodes, others)
