# SPDX-License-Identifier: Apache-2.0
"""A paged cache with known contents, and the queries, keys and values of one step on it."""

from dataclasses import dataclass

import numpy as np

from tests.kernels.ragged import Step


@dataclass(frozen=True)
class Shape:
    """Static sizes of an attention test. One compiled program each."""

    query_heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    pages_per_request: int
    dtype: str = "float32"
    layers: int = 2
    max_tokens: int = 160
    max_requests: int = 6

    def __str__(self) -> str:
        heads = f"{self.query_heads}q{self.kv_heads}kv{self.head_dim}"
        return f"{heads}-page{self.page_size}-{self.dtype}"


@dataclass
class Pool:
    """Arguments of `ragged_paged_attention`, with NaN and garbage wherever nothing may look."""

    q: np.ndarray  # [T, Hq, D]
    k: np.ndarray  # [T, Hkv, D]
    v: np.ndarray  # [T, Hkv, D]
    pages: np.ndarray  # [layers, num_pages, Hkv, page_size, 2 * D]
    block_tables: np.ndarray  # [R, P]
    history: list[np.ndarray]  # of each request, K beside V [context + new, Hkv, 2 * D]

    @classmethod
    def of(cls, shape: Shape, step: Step, layer: int, seed: int) -> "Pool":
        rng = np.random.default_rng(seed)
        dtype = np.dtype(shape.dtype)

        def normal(*size):
            return rng.standard_normal(size, np.float32).astype(dtype)

        token = (shape.kv_heads, shape.head_dim)
        q = normal(shape.max_tokens, shape.query_heads, shape.head_dim)
        k, v = normal(shape.max_tokens, *token), normal(shape.max_tokens, *token)
        for x in (q, k, v):
            x[step.num_tokens :] = np.nan

        num_pages = shape.max_requests * shape.pages_per_request + 1
        page = (shape.kv_heads, shape.page_size, 2 * shape.head_dim)
        pages = np.full((shape.layers, num_pages, *page), np.nan, dtype)
        garbage = [-7, 2**31 - 1, 0, num_pages]
        tables = rng.choice(garbage, (shape.max_requests, shape.pages_per_request))
        free = list(rng.permutation(num_pages))
        history = []
        for r, (request, rows) in enumerate(zip(step.requests, step.rows(), strict=True)):
            length = request.context + request.new
            kv = normal(length, shape.kv_heads, 2 * shape.head_dim)
            kv[request.context :] = np.concatenate([k[rows], v[rows]], axis=-1)
            for block in range(-(-length // shape.page_size)):
                tables[r, block] = free.pop()
            cls._write(pages[layer], tables[r], kv, 0, request.context)
            history.append(kv)
        return cls(q, k, v, pages, tables.astype(np.int32), history)

    def pages_after(self, step: Step, layer: int) -> np.ndarray:
        """The pages once the step's new tokens are written, and nothing else."""
        pages = self.pages.copy()
        for r, request in enumerate(step.requests):
            end = request.context + request.new
            self._write(pages[layer], self.block_tables[r], self.history[r], request.context, end)
        return pages

    @staticmethod
    def _write(pages, table, kv, start, stop):
        page_size = pages.shape[2]
        for position in range(start, stop):
            pages[table[position // page_size], :, position % page_size] = kv[position]
