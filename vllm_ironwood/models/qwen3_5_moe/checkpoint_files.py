# SPDX-License-Identifier: Apache-2.0
"""The files of a checkpoint directory: config.json, and tensors in one or many safetensors files.

Opening reads the headers only; tensor data is read slice by slice, on demand.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_STORED_DTYPES = ("F32", "BF16", "F16")


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded: one line that names the file or tensor and the remedy."""


class TensorInfo(NamedTuple):
    """Where a tensor is stored and what its header says."""

    file: Path
    shape: tuple[int, ...]
    dtype: str  # as safetensors spells it: "F32", "BF16", ...


def read_hf_config(directory: Path | str) -> dict[str, Any]:
    """The contents of config.json; raises CheckpointError when it is missing or malformed."""
    directory = Path(directory)
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: no such directory; give the path of a checkpoint")
    return _read_json(directory / "config.json", "it describes the model: copy it there")


class CheckpointFiles:
    """The tensors of a checkpoint directory, by name.

    With an index file, the index says which files to read and what is in each. Without one, every
    *.safetensors file is read. Raises CheckpointError, naming file and tensor, when a file is
    missing or truncated, when files and index disagree, or when two files hold the same tensor.
    """

    def __init__(self, directory: Path | str):
        self.directory = Path(directory)
        self.tensors: dict[str, TensorInfo] = {}
        self._open: dict[Path, Any] = {}
        weight_map = self._read_index()
        files = sorted(self.directory.glob("*.safetensors"))
        if weight_map is not None:
            files = sorted({self.directory / name for name in weight_map.values()})
        if not files:
            raise CheckpointError(
                f"{self.directory}: no *.safetensors file; convert the weights to safetensors"
            )
        for file in files:
            self._open_file(file)
        if weight_map is not None:
            self._check_index(weight_map)

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """The given slice of a tensor, read from its file; raises CheckpointError if it cannot."""
        file = self.tensors[name].file
        try:
            return self._open[file].get_slice(name)[index]
        except SafetensorError as error:
            raise CheckpointError(f"{file}: cannot read tensor {name} ({error})") from error

    def _read_index(self) -> Mapping[str, str] | None:
        """Tensor name -> file name, or None when there is no index."""
        path = self.directory / INDEX_NAME
        if not path.exists():
            return None
        weight_map = _read_json(path, "copy it there").get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{path}: no weight_map in it; copy the file again")
        leftover = (self.directory / SINGLE_NAME).exists()
        if leftover and SINGLE_NAME not in weight_map.values():
            raise CheckpointError(
                f"{self.directory}: {SINGLE_NAME} is not in {INDEX_NAME}, so there are two "
                "checkpoints in this directory; remove one"
            )
        return weight_map

    def _open_file(self, file: Path) -> None:
        try:
            opened = safe_open(file, framework="np")
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{file}: listed in {INDEX_NAME}, but there is no such file; copy it there"
            ) from error
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{file}: not a whole safetensors file ({error}); it is truncated or damaged, "
                "copy it again"
            ) from error
        self._open[file] = opened
        for name in opened.keys():  # noqa: SIM118 (not a mapping)
            if name in self.tensors:
                raise CheckpointError(
                    f"{file}: tensor {name} is also in {self.tensors[name].file.name}; "
                    "remove the file that is not part of the checkpoint"
                )
            header = opened.get_slice(name)
            self.tensors[name] = TensorInfo(file, tuple(header.get_shape()), header.get_dtype())

    def _check_index(self, weight_map: Mapping[str, str]) -> None:
        for name, file_name in weight_map.items():
            info = self.tensors.get(name)
            if info is None or info.file.name != file_name:
                raise CheckpointError(
                    f"{self.directory / file_name}: tensor {name} is not in it, though "
                    f"{INDEX_NAME} says so; copy both files again"
                )
        for name, info in self.tensors.items():
            if name not in weight_map:
                raise CheckpointError(
                    f"{info.file}: tensor {name} is not listed in {INDEX_NAME}; copy both again"
                )

    def check_tensor(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises CheckpointError unless the tensor exists with this shape and a float dtype."""
        info = self.tensors.get(name)
        if info is None:
            raise CheckpointError(
                f"{self.directory}: tensor {name} is missing; the checkpoint is incomplete, or "
                "config.json describes another model"
            )
        if info.shape != shape:
            raise CheckpointError(
                f"{info.file}: tensor {name} has shape {list(info.shape)}, but config.json asks "
                f"for {list(shape)}; they do not belong together"
            )
        if info.dtype not in _STORED_DTYPES:
            raise CheckpointError(
                f"{info.file}: tensor {name} has dtype {info.dtype}, but must be one of "
                f"{', '.join(_STORED_DTYPES)}; use an unquantised checkpoint"
            )


def _read_json(path: Path, remedy: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file; {remedy}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error}); copy it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: not a JSON object; copy it again")
    return content
