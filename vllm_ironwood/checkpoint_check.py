# SPDX-License-Identifier: Apache-2.0
"""Look at a checkpoint before anything heavy starts: the directory, config.json, the headers.

The front end does this, so that a wrong path, another model or a truncated file ends in one
line within the first second. No tensor is read and neither torch nor JAX is imported.
"""

import os
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from vllm_ironwood.errors import ConfigurationError
from vllm_ironwood.models.qwen3_5_moe.checkpoint_files import CheckpointFiles, read_hf_config
from vllm_ironwood.models.qwen3_5_moe.config import ModelConfig

if TYPE_CHECKING:
    from vllm.config import ModelConfig as VllmModelConfig

Result = TypeVar("Result")


def check_model_argument(value: str) -> str:
    """The model argument of the command line, looked at when it is a path.

    Returns it as it is.

    Raises:
        ConfigurationError: a path that is no directory, or a directory whose config.json is
            missing, malformed, or describes another model.
    """
    if os.path.exists(value) or value.startswith(("/", "./", "../", "~")):
        config = _or_refuse(read_hf_config, os.path.expanduser(value))
        _or_refuse(ModelConfig.from_hf, config)
    return value


def check_model(model_config: "VllmModelConfig") -> None:
    """Check the model of a vLLM configuration; raises ConfigurationError in one line.

    The dimensions are those that vLLM read, with ``--hf-overrides`` applied.
    """
    _or_refuse(ModelConfig.from_hf, model_config.hf_config.to_dict())
    _or_refuse(_check_files, model_config.model)


@lru_cache(maxsize=8)
def _check_files(directory: str) -> None:
    """Open every weight file once per process: vLLM builds its configuration several times."""
    CheckpointFiles(directory)


def _or_refuse(check: Callable[..., Result], *args: Any) -> Result:
    """Call ``check``; its ValueError (CheckpointError is one) becomes a ConfigurationError."""
    try:
        return check(*args)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
