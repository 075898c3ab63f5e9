# SPDX-License-Identifier: Apache-2.0
"""Argument checks that every kernel's `api.py` shares. They run at trace time and cost nothing."""

import jax
import jax.numpy as jnp

from csrc_pallas.ragged_batch import RaggedBatch


def check_shape(name: str, array: jax.Array, axes: str, expected: tuple[int, ...]) -> None:
    """Raises ValueError unless `array.shape == expected`; `axes` names the axes in the message."""
    if tuple(array.shape) != tuple(expected):
        raise ValueError(
            f"{name} has shape {tuple(array.shape)}, but must be {axes} = {tuple(expected)}"
        )


def check_rank(name: str, array: jax.Array, axes: str) -> None:
    """Raises ValueError unless `array` has one dimension per name in `axes`, e.g. "[T, Hq, D]"."""
    rank = axes.count(",") + 1
    if array.ndim != rank:
        raise ValueError(f"{name} has shape {tuple(array.shape)}, but must be {axes}")


def check_dtype(name: str, array: jax.Array, dtype) -> None:
    """Raises ValueError unless `array` has exactly this dtype."""
    if array.dtype != jnp.dtype(dtype):
        raise ValueError(f"{name} is {array.dtype}, but must be {jnp.dtype(dtype)}")


def check_floating(name: str, array: jax.Array) -> None:
    """Raises ValueError unless `array` holds floating-point numbers."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise ValueError(f"{name} is {array.dtype}, but must be a floating-point type")


def check_multiple(name: str, value: int, divisor_name: str, divisor: int) -> None:
    """Raises ValueError unless `value` is a positive multiple of `divisor`."""
    if divisor <= 0 or value <= 0 or value % divisor:
        raise ValueError(
            f"{name} = {value} must be a positive multiple of {divisor_name} = {divisor}"
        )


def check_batch(batch: RaggedBatch) -> int:
    """Checks shapes and dtypes of the batch and returns R, its padded number of requests."""
    check_rank("batch.context_len", batch.context_len, "[R]")
    num_requests = batch.context_len.shape[0]
    check_shape("batch.query_start", batch.query_start, "[R + 1]", (num_requests + 1,))
    check_shape("batch.num_decodes", batch.num_decodes, "[]", ())
    check_shape("batch.num_requests", batch.num_requests, "[]", ())
    for field, array in zip(batch._fields, batch, strict=True):
        check_dtype(f"batch.{field}", array, jnp.int32)
    return num_requests
