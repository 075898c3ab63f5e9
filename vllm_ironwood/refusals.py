# SPDX-License-Identifier: Apache-2.0
"""Refusing a configuration by name: what a row of the table is, and how it finds its case.

The rule is *supported or refused, never ignored*. The rows are in
:mod:`vllm_ironwood.refused_configurations`.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_ironwood.errors import ConfigurationError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

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
