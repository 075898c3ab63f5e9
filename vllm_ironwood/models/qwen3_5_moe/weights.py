# SPDX-License-Identifier: Apache-2.0
"""Load a checkpoint directory into stacked, possibly sharded parameters.

Each device's share is read straight from the files, in groups of layers that are bounded in size,
so that the host never holds more than one group beside what it holds for good.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from math import prod
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding
from tqdm import tqdm

from vllm_ironwood.models.qwen3_5_moe.checkpoint_files import (
    CheckpointError,
    CheckpointFiles,
    read_hf_config,
)
from vllm_ironwood.models.qwen3_5_moe.checkpoint_layout import Blocks, leaves, parameter_blocks
from vllm_ironwood.models.qwen3_5_moe.config import ModelConfig, text_config
from vllm_ironwood.models.qwen3_5_moe.params import Params, ParamSpec, param_specs

__all__ = ["CheckpointError", "load_params", "read_hf_config"]

_STAGING_BYTES = 1 << 30
_TILE = 256  # elements on a side: two tiles of float32 fit a core's cache


def load_params(
    config: ModelConfig,
    checkpoint_dir: Path | str,
    dtype: jax.typing.DTypeLike,
    *,
    sharding: Callable[[ParamSpec], Sharding] | None = None,
    progress: bool = True,
    staging_bytes: int = _STAGING_BYTES,
) -> Params:
    """The parameters of the model, converted to `dtype` (see param_specs) and placed on devices.

    sharding: where each parameter lives; None puts all on the first device. The layer axis of a
      stacked parameter must not be sharded.
    progress: show a progress bar on stderr, in GB and GB/s.
    staging_bytes: host memory for a group of layers on its way to the devices; a group has at
      least one layer.

    Raises CheckpointError, before any data is read, when config.json describes another model or a
    quantised checkpoint, or when a tensor or file is missing, unknown, duplicated, mis-shaped, of
    another dtype, or truncated.
    """
    _check_supported(checkpoint_dir)
    files = CheckpointFiles(checkpoint_dir)
    blocks = leaves(parameter_blocks(config, files))
    specs, structure = jax.tree.flatten(param_specs(config, dtype))
    place = sharding or (lambda spec: jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    shardings = [place(spec) for spec in specs]
    total = sum(_local_bytes(spec, where) for spec, where in zip(specs, shardings))
    with (
        tqdm(
            total=total,
            desc="Loading weights",
            unit="B",
            unit_scale=True,
            mininterval=0.5,
            disable=not progress,
        ) as bar,
        ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as threads,
    ):
        loader = _Loader(files, threads, bar.update, staging_bytes)
        arrays = [loader.load(*each) for each in zip(specs, blocks, shardings)]
    return jax.tree.unflatten(structure, arrays)


def _check_supported(checkpoint_dir: Path | str) -> None:
    config = read_hf_config(checkpoint_dir)
    path = Path(checkpoint_dir) / "config.json"
    try:
        text = text_config(config)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    quantization = config.get("quantization_config") or text.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unnamed")
        raise CheckpointError(
            f"{path}: quantization_config ({method}) is not supported; use the bf16 checkpoint"
        )


class _Loader:
    """Reads parameters from files, one at a time, with a pool of threads."""

    def __init__(self, files: CheckpointFiles, threads, report_bytes, staging_bytes: int):
        self._files = files
        self._threads = threads
        self._report_bytes = report_bytes
        self._staging_bytes = staging_bytes

    def load(self, spec: ParamSpec, blocks: Blocks, sharding: Sharding) -> jax.Array:
        """One parameter on its devices, assembled from groups of layers."""
        layers = spec.shape[0] if blocks.depth else 1
        layer_bytes = max(1, _local_bytes(spec, sharding) // max(1, layers))
        group = max(1, self._staging_bytes // layer_bytes)
        if blocks.depth == 0 or layers <= group:
            return self._load_rows(spec, blocks, sharding, 0, spec.shape[0])
        stack = jax.jit(partial(jnp.zeros, spec.shape, spec.dtype), out_shardings=sharding)()
        for start in range(0, layers, group):
            rows = self._load_rows(spec, blocks, sharding, start, min(group, layers - start))
            # Waiting here keeps one group alive at a time.
            stack = _write_rows(stack, rows, start).block_until_ready()
        return stack

    def _load_rows(
        self, spec: ParamSpec, blocks: Blocks, sharding: Sharding, first: int, count: int
    ) -> jax.Array:
        """Rows [first, first + count) of the leading axis as an array of their own."""
        shape = (count, *spec.shape[1:])
        shards = spec.shape[-1] // max(1, sharding.shard_shape(spec.shape)[-1]) or 1
        seen: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

        def read(index: tuple[slice, ...]) -> np.ndarray:
            bounds = tuple(axis.indices(size)[:2] for axis, size in zip(index, shape))
            if bounds not in seen:  # replicas read once
                seen[bounds] = self._read(spec, blocks, shards, first, bounds)
            return seen[bounds]

        return jax.make_array_from_callback(shape, sharding, read, dtype=spec.dtype)

    def _read(
        self,
        spec: ParamSpec,
        blocks: Blocks,
        shards: int,
        first: int,
        bounds: tuple[tuple[int, int], ...],
    ) -> np.ndarray:
        """The part of a parameter within `bounds`, whose leading axis counts from `first`."""
        out = np.empty([stop - start for start, stop in bounds], spec.dtype)
        tasks = []
        outer = max(blocks.depth, len(bounds) - 2)  # axes outside a matrix or vector
        for lead in product(*(range(start, stop) for start, stop in bounds[:outer])):
            target = out[tuple(i - bound[0] for i, bound in zip(lead, bounds))]
            block, rest = lead[: blocks.depth], lead[blocks.depth :]
            sources = blocks.sources[(block[0] + first, *block[1:]) if block else ()]
            inner = (*((i, i + 1) for i in rest), *bounds[outer:])
            tasks.append(
                self._threads.submit(self._read_block, spec, shards, sources, inner, target)
            )
        for task in tasks:
            self._report_bytes(task.result())
        return out

    def _read_block(self, spec: ParamSpec, shards: int, sources, bounds, target) -> int:
        """Fill `target` with what `sources` hold within `bounds`; returns the bytes filled.

        target is a matrix or a vector; `bounds` may have axes of size 1 before its axes.
        """
        column = 0
        parts = spec.parts or spec.shape[-1:]
        for start, stop in fused_ranges(parts, shards, *bounds[-1]):
            offset = 0  # of a source, among the columns of all sources
            for source in sources:
                width = source.shape[source.order[-1]]
                low, high = max(start, offset), min(stop, offset + width)
                if low < high:
                    inner = (*bounds[:-1], (low - offset, high - offset))
                    index = [slice(0, 1)] * len(source.shape)
                    for axis, bound in zip(source.order, inner):
                        index[axis] = slice(*bound)
                    left_out = [axis for axis in range(len(index)) if axis not in source.order]
                    stored = self._files.read(source.name, tuple(index))
                    block = stored.transpose(*source.order, *left_out)
                    columns = target[..., column : column + high - low]
                    _copy(block.reshape(columns.shape), columns)
                    column += high - low
                offset += width
        return target.nbytes


def fused_ranges(
    parts: tuple[int, ...], shards: int, start: int, stop: int
) -> list[tuple[int, int]]:
    """Where columns [start, stop) of a fused axis come from.

    With n shards the axis holds, for each shard in turn, its share of each part. The ranges are in
    the unsharded order (all of the first part, all of the second, ...), adjacent ones joined.
    Raises ValueError when a part does not divide into so many shards.
    """
    if any(part % shards for part in parts):
        raise ValueError(f"cannot shard a fused axis {shards} ways: its parts have sizes {parts}")
    ranges: list[tuple[int, int]] = []
    position = 0
    for shard in range(shards):
        origin = 0
        for part in parts:
            width = part // shards
            low, high = max(start, position), min(stop, position + width)
            if low < high:
                begin = origin + shard * width + low - position
                end = begin + high - low
                if ranges and ranges[-1][1] == begin:
                    ranges[-1] = (ranges[-1][0], end)
                else:
                    ranges.append((begin, end))
            position += width
            origin += part
    return ranges


def _copy(source: np.ndarray, target: np.ndarray) -> None:
    """target[...] = source, in tiles: the two differ in axis order, and a plain copy between
    orders misses the cache at every element (3 times slower at 2048 x 4096)."""
    if source.dtype == target.dtype:  # plain integers copy without the interpreter's lock
        bits = np.dtype(f"u{source.itemsize}")
        source, target = source.view(bits), target.view(bits)
    if source.ndim < 2:
        target[...] = source
        return
    for row in range(0, source.shape[-2], _TILE):
        for column in range(0, source.shape[-1], _TILE):
            tile = (..., slice(row, row + _TILE), slice(column, column + _TILE))
            target[tile] = source[tile]


@partial(jax.jit, donate_argnums=0)
def _write_rows(stack: jax.Array, rows: jax.Array, start: int) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(stack, rows, start, axis=0)


def _local_bytes(spec: ParamSpec, sharding: Sharding) -> int:
    """Bytes of a parameter that this process reads: distinct shards of its own devices."""
    indices = sharding.addressable_devices_indices_map(spec.shape).values()
    distinct = {
        tuple(axis.indices(size)[:2] for axis, size in zip(index, spec.shape)) for index in indices
    }
    return len(distinct) * prod(sharding.shard_shape(spec.shape)) * spec.dtype.itemsize
