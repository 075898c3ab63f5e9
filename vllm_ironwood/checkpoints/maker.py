# SPDX-License-Identifier: Apache-2.0
"""Write a random checkpoint that transformers and this package can both load."""

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from vllm_ironwood.checkpoints.sizes import hf_config, special_token_ids, text_fields
from vllm_ironwood.checkpoints.tensors import Tensor, checkpoint_tensors
from vllm_ironwood.checkpoints.tokenizer import build_tokenizer, write_tokenizer
from vllm_ironwood.models.qwen3_5_moe.config import ModelConfig

_DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


class Summary(NamedTuple):
    """What was written."""

    directory: Path
    files: int
    parameters: int
    nbytes: int

    def __str__(self) -> str:
        return (
            f"{self.directory}: {self.parameters / 1e6:,.1f} M parameters, "
            f"{self.nbytes / 1e6:,.1f} MB in {self.files} file{'s' if self.files > 1 else ''}"
        )


def make_checkpoint(
    directory: Path | str,
    *,
    size: str = "tiny",
    layout: str = "flat",
    seed: int = 0,
    dtype: str = "float32",
    experts: str = "fused",
    shards: int = 1,
    tie_word_embeddings: bool = False,
    overrides: Mapping[str, Any] | None = None,
    force: bool = False,
) -> Summary:
    """Write config.json, generation_config.json, weights, tokenizer and chat template.

    Args:
        directory: made when it does not exist.
        size: one of sizes.SIZES.
        layout: "flat" (the text model alone, `model.layers.*`) or "nested" (inside a
            vision-language model, `model.language_model.layers.*`, with `model.visual.*` and
            `mtp.*` beside it).
        seed: the same seed gives the same weights in any layout, dtype and number of files.
        dtype: "float32" or "bfloat16", of every tensor.
        experts: "fused" (one tensor for all experts of a layer) or "separate".
        shards: number of weight files of about equal size; one shard is in memory at a time.
        tie_word_embeddings: use the embedding as the head.
        overrides: other values for fields of the text model's configuration.
        force: replace a checkpoint that is there already.

    Raises ValueError for a choice that does not exist or dimensions that do not fit, and
    FileExistsError when the directory has files in it, unless `force` is given.
    """
    directory = Path(directory)
    for name, value, choices in (
        ("layout", layout, ("flat", "nested")),
        ("dtype", dtype, tuple(_DTYPES)),
        ("experts", experts, ("fused", "separate")),
    ):
        if value not in choices:
            raise ValueError(f"{name} {value!r} is unknown; choose one of {', '.join(choices)}")
    fields = text_fields(size, overrides or {})
    config = hf_config(fields, layout=layout, dtype=dtype, tie_word_embeddings=tie_word_embeddings)
    tensors = list(
        checkpoint_tensors(
            fields, layout=layout, experts=experts, tie_word_embeddings=tie_word_embeddings
        )
    )
    if not 1 <= shards <= len(tensors):
        raise ValueError(f"shards is {shards}, but must be between 1 and {len(tensors)} (tensors)")
    ModelConfig.from_hf(config)  # raises when the dimensions do not fit each other
    tokenizer = build_tokenizer(fields["vocab_size"])
    _prepare(directory, force)
    _write_json(directory / "config.json", config)
    write_tokenizer(directory, tokenizer, fields["max_position_embeddings"])
    end_of_text, _, end_of_turn, *_ = special_token_ids(fields["vocab_size"])
    generation = {"eos_token_id": [end_of_turn, end_of_text], "pad_token_id": end_of_text}
    _write_json(directory / "generation_config.json", generation)
    nbytes = _write_weights(directory, tensors, shards, seed, _DTYPES[dtype])
    return Summary(directory, shards, nbytes // _DTYPES[dtype].itemsize, nbytes)


def _prepare(directory: Path, force: bool) -> None:
    if directory.is_dir() and any(directory.iterdir()):
        if not force:
            raise FileExistsError(f"{directory} is not empty; choose another, or give --force")
        for old in (*directory.glob("model*.safetensors"), *directory.glob("*.index.json")):
            old.unlink()
    directory.mkdir(parents=True, exist_ok=True)


def _write_weights(
    directory: Path, tensors: list[Tensor], shards: int, seed: int, dtype: np.dtype
) -> int:
    """Write the weight files, and their index when there are many; returns the bytes of data."""
    weight_map: dict[str, str] = {}
    nbytes = 0
    for number, group in enumerate(_split(tensors, shards), start=1):
        name = (
            f"model-{number:05}-of-{shards:05}.safetensors" if shards > 1 else "model.safetensors"
        )
        arrays = {tensor.name: tensor.values(seed).astype(dtype) for tensor in group}
        save_file(arrays, directory / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(arrays, name)
        nbytes += sum(array.nbytes for array in arrays.values())
    if shards > 1:
        index = {"metadata": {"total_size": nbytes}, "weight_map": weight_map}
        _write_json(directory / "model.safetensors.index.json", index)
    return nbytes


def _split(tensors: list[Tensor], shards: int) -> Iterator[list[Tensor]]:
    """Consecutive groups of about equal size, none empty."""
    ends = np.cumsum([prod(tensor.shape) for tensor in tensors])
    start = 0
    for shard in range(1, shards + 1):
        stop = int(np.searchsorted(ends, ends[-1] * shard / shards)) + 1
        # Leave at least one tensor for each of the shards to come.
        stop = min(max(stop, start + 1), len(tensors) - (shards - shard))
        yield tensors[start:stop]
        start = stop


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
