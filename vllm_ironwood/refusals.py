# SPDX-License-Identifier: Apache-2.0
"""Refusing a configuration by name: what a row of the table is, and how it finds its case.

The rule is *supported or refused, never ignored*. The rows are in
:mod:`vllm_ironwood.refused_configurations`.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from vllm_ironwood.block_sizes import ALLOWED_BLOCK_SIZES
from vllm_ironwood.errors import ConfigurationError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

SUPPORTED_ARCHITECTURES = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
WORKER_CLASS = "vllm_ironwood.worker.IronwoodWorker"

Found = Callable[["VllmConfig"], str | None]


@dataclass(frozen=True)
class Refusal:
    """One unsupported configuration.

    Attributes:
        name: what it is, as the documentation calls it.
        asked: how a user asks for it.
        instead: what to do instead.
        found: what was asked for, with its value; None when it was not.
        before_defaults: look before vLLM fills in its own defaults, after which the user's
            choice could not be told from them.
    """

    name: str
    asked: str
    instead: str
    found: Found
    before_defaults: bool = False


def check(
    rows: Iterable[Refusal], vllm_config: "VllmConfig", *, before_defaults: bool = False
) -> None:
    """Raise ConfigurationError for the first row that the configuration meets."""
    for row in rows:
        if row.before_defaults != before_defaults:
            continue
        asked = row.found(vllm_config)
        if asked is not None:
            raise ConfigurationError(f"{row.name} is not supported ({asked}): {row.instead}")


# Ways to find what was asked. Paths start at VllmConfig: "cache_config.block_size".


def value_at(vllm_config: "VllmConfig", path: str) -> Any:
    """The value at a dotted path; None where a configuration on the way is None."""
    value: Any = vllm_config
    for name in path.split("."):
        if value is None:
            return None
        value = getattr(value, name)
    return value


def other_than(path: str, *supported: Any) -> Found:
    """Found when the value is set (not None) and is none of the supported ones."""

    def found(vllm_config: "VllmConfig") -> str | None:
        value = value_at(vllm_config, path)
        if value is None or value in supported:
            return None
        return f"{path.rpartition('.')[2]}={value}"

    return found


def given(path: str) -> Found:
    """Found when there is anything at the path: not None, not False, not empty."""

    def found(vllm_config: "VllmConfig") -> str | None:
        return path.rpartition(".")[2] if value_at(vllm_config, path) else None

    return found


def changed(path: str, *allowed: str) -> Found:
    """Found when a field of the configuration at the path is not at vLLM's default.

    Args:
        allowed: fields that may be changed.
    """

    def found(vllm_config: "VllmConfig") -> str | None:
        config = value_at(vllm_config, path)
        if config is None:
            return None
        defaults = type(config)()
        changed = [
            f"{field.name}={getattr(config, field.name)}"
            for field in dataclasses.fields(config)
            if field.name not in allowed
            and getattr(config, field.name) != getattr(defaults, field.name)
        ]
        return ", ".join(changed) or None

    return found


def first_of(*ways: Found) -> Found:
    def found(vllm_config: "VllmConfig") -> str | None:
        return next((asked for way in ways if (asked := way(vllm_config)) is not None), None)

    return found


def variable_set(name: str) -> Found:
    """Found when an environment variable is switched on."""

    def found(vllm_config: "VllmConfig") -> str | None:
        value = os.environ.get(name, "0")
        return None if value.lower() in ("", "0", "false") else f"{name}={value}"

    return found


# Cases that take more than a value at a path.


def foreign_architecture(vllm_config: "VllmConfig") -> str | None:
    model = vllm_config.model_config
    if model is None or set(model.architectures) & set(SUPPORTED_ARCHITECTURES):
        return None
    return ", ".join(model.architectures)


def remote_model(vllm_config: "VllmConfig") -> str | None:
    model = vllm_config.model_config
    return None if model is None or os.path.isdir(model.model) else f"model={model.model}"


def float16(vllm_config: "VllmConfig") -> str | None:
    dtype = str(value_at(vllm_config, "model_config.dtype"))
    return "dtype=float16" if dtype == "torch.float16" else None


def logits_processor_package(vllm_config: "VllmConfig") -> str | None:
    """Elsewhere vLLM loads what is installed; for a platform that calls itself TPU, nothing."""
    return next((point.value for point in entry_points(group="vllm.logits_processors")), None)


def cache_dtype(vllm_config: "VllmConfig") -> str | None:
    dtype = vllm_config.cache_config.cache_dtype
    model = vllm_config.model_config
    if dtype == "auto" or model is None or str(model.dtype) == f"torch.{dtype}":
        return None
    return f"kv_cache_dtype={dtype}"


def block_size(vllm_config: "VllmConfig") -> str | None:
    cache = vllm_config.cache_config
    if not cache.user_specified_block_size or cache.block_size in ALLOWED_BLOCK_SIZES:
        return None
    return f"block_size={cache.block_size}"


def state_block(vllm_config: "VllmConfig") -> str | None:
    """Beside the block size itself vLLM puts the context length there, without caching."""
    cache, model = vllm_config.cache_config, vllm_config.model_config
    usual = (None, cache.block_size, model.max_model_len if model is not None else None)
    return None if cache.mamba_block_size in usual else f"mamba_block_size={cache.mamba_block_size}"


def prefix_match_unit(vllm_config: "VllmConfig") -> str | None:
    unit = vllm_config.cache_config.prefix_match_unit
    return None if unit in (None, vllm_config.cache_config.block_size) else f"{unit=}"


def op_priority(vllm_config: "VllmConfig") -> str | None:
    priorities = vars(vllm_config.kernel_config.ir_op_priority)
    asked = [
        f"ir_op_priority.{op}={p}" for op, p in priorities.items() if p not in ([], ["native"])
    ]
    return asked[0] if asked else None


def gpu_backend_settings(vllm_config: "VllmConfig") -> str | None:
    """vLLM passes these three arguments on inside additional_config."""
    names = ("gdn_prefill_backend", "kda_prefill_backend", "kda_decode_backend")
    settings = vllm_config.additional_config
    found = [f"{n}={settings[n]}" for n in names if isinstance(settings, dict) and n in settings]
    return found[0] if found else None
