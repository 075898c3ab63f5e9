# SPDX-License-Identifier: Apache-2.0
"""A step's inputs as one int32 vector: one transfer to the device, whatever the fields.

A dozen small arrays cost a dozen host-to-device transfers, each of which takes longer
than copying all of them together. So the host writes every field into one buffer, and
the program slices the fields out again.
"""

from typing import NamedTuple

import jax
import numpy as np

from vllm_ironwood.runner.buckets import Bucket


class PackedFields(NamedTuple):
    """The fields of a step (``T`` token rows, ``R`` request rows, ``P`` pages a request).

    The same tuple holds numpy views on the host and traced arrays on the device.
    """

    token_ids: jax.Array | np.ndarray  # [T] int32; -1: the request's last token on device
    query_start: jax.Array | np.ndarray  # [R + 1] int32
    context_len: jax.Array | np.ndarray  # [R] int32
    counts: jax.Array | np.ndarray  # [2] int32: decodes, requests
    block_tables: jax.Array | np.ndarray  # [R, P] int32
    state_read: jax.Array | np.ndarray  # [R] int32 slot
    state_write: jax.Array | np.ndarray  # [R] int32 slot
    row: jax.Array | np.ndarray  # [R] int32 row of the request table, capacity = padding
    sample: jax.Array | np.ndarray  # [R] int32: 1 = this step samples a token for it
    top_k: jax.Array | np.ndarray  # [R] int32, 0 = all
    seed: jax.Array | np.ndarray  # [R] uint32
    temperature: jax.Array | np.ndarray  # [R] float32
    top_p: jax.Array | np.ndarray  # [R] float32
    min_p: jax.Array | np.ndarray  # [R] float32
    has_rules: jax.Array | np.ndarray  # [R] int32: 1 = has a row in the tables of token rules
    bar_stops: jax.Array | np.ndarray  # [R] int32: 1 = has not generated min_tokens yet
    presence_penalty: jax.Array | np.ndarray  # [R] float32
    frequency_penalty: jax.Array | np.ndarray  # [R] float32
    repetition_penalty: jax.Array | np.ndarray  # [R] float32
    want_logprobs: jax.Array | np.ndarray  # [1] int32
    want_logprobs_by_id: jax.Array | np.ndarray  # [1] int32
    want_prompt_logprobs: jax.Array | np.ndarray  # [1] int32
    prompt_targets: jax.Array | np.ndarray  # [T] int32 the prompt's next token; -1: not asked
    has_grammar: jax.Array | np.ndarray  # [1] int32: the step's bitmask bars tokens


def field_shapes(bucket: Bucket, pages_per_request: int) -> PackedFields:
    """Shape of each field, in the order in which they stand in the vector."""
    tokens, requests = bucket
    each = (requests,)
    return PackedFields(
        token_ids=(tokens,),
        query_start=(requests + 1,),
        context_len=each,
        counts=(2,),
        block_tables=(requests, pages_per_request),
        state_read=each,
        state_write=each,
        row=each,
        sample=each,
        top_k=each,
        seed=each,
        temperature=each,
        top_p=each,
        min_p=each,
        has_rules=each,
        bar_stops=each,
        presence_penalty=each,
        frequency_penalty=each,
        repetition_penalty=each,
        want_logprobs=(1,),
        want_logprobs_by_id=(1,),
        want_prompt_logprobs=(1,),
        prompt_targets=(tokens,),
        has_grammar=(1,),
    )


_FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_VIEWED_AS = {"seed": np.uint32, **dict.fromkeys(_FLOATS, np.float32)}


def packed_size(bucket: Bucket, pages_per_request: int) -> int:
    return sum(int(np.prod(shape)) for shape in field_shapes(bucket, pages_per_request))


def host_views(buffer: np.ndarray, bucket: Bucket, pages_per_request: int) -> PackedFields:
    """Writable views of the fields into ``buffer`` (int32 ``[packed_size]``)."""
    views, offset = {}, 0
    shapes = field_shapes(bucket, pages_per_request)
    for name, shape in zip(PackedFields._fields, shapes, strict=True):
        size = int(np.prod(shape))
        view = buffer[offset : offset + size].reshape(shape)
        views[name] = view.view(_VIEWED_AS.get(name, np.int32))
        offset += size
    return PackedFields(**views)


def unpack(packed: jax.Array, bucket: Bucket, pages_per_request: int) -> PackedFields:
    """The fields of a packed vector, inside a program."""
    fields, offset = {}, 0
    shapes = field_shapes(bucket, pages_per_request)
    for name, shape in zip(PackedFields._fields, shapes, strict=True):
        size = int(np.prod(shape))
        field = packed[offset : offset + size].reshape(shape)
        dtype = _VIEWED_AS.get(name)
        fields[name] = field if dtype is None else jax.lax.bitcast_convert_type(field, dtype)
        offset += size
    return PackedFields(**fields)
