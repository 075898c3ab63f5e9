# SPDX-License-Identifier: Apache-2.0
"""Environment variables that change what vLLM, JAX or the TPU runtime do."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from vllm_ironwood.cli.doctor.findings import Finding, Status
from vllm_ironwood.cli.doctor.plugins import ENTRY_POINTS
from vllm_ironwood.devices import DEVICE_CHOICES, DEVICE_VARIABLE

SECTION = "environment"
SHOWN_PREFIXES = ("IRONWOOD_", "JAX_", "LIBTPU_", "TPU_", "VLLM_", "XLA_")
PLUGIN_NAMES = frozenset(name for _, name in ENTRY_POINTS)


class Rule(NamedTuple):
    """A variable, the values of it that do harm, how much, and what to do."""

    variable: str
    harmful: Callable[[str], bool]
    status: Status
    remedy: str


def is_on(value: str) -> bool:
    """Would JAX read this value of a boolean variable as true?"""
    return value.strip().lower() in ("1", "true", "yes", "on", "y", "t")


def lacks_plugins(value: str) -> bool:
    """Does this value of VLLM_PLUGINS leave out an entry point of this package?"""
    return not {name.strip() for name in value.split(",")} >= PLUGIN_NAMES


def lacks_platforms(value: str) -> bool:
    """Does this value of JAX_PLATFORMS name neither a TPU nor the CPU?"""
    platforms = {name.strip() for name in value.split(",") if name.strip()}
    return bool(platforms) and not platforms & {"cpu", "tpu"}


RULES = (
    Rule(
        DEVICE_VARIABLE,
        lambda value: bool(value) and value not in DEVICE_CHOICES,
        Status.ERROR,
        f"this is no device: unset it or choose one of {', '.join(DEVICE_CHOICES)}",
    ),
    Rule(
        "VLLM_PLUGINS",
        lacks_plugins,
        Status.ERROR,
        f"vLLM will not load the plugin: unset it or add {', '.join(sorted(PLUGIN_NAMES))}",
    ),
    Rule(
        "VLLM_TARGET_DEVICE",
        lambda value: value == "cpu",
        Status.ERROR,
        "vLLM then takes its own CPU platform and asks no plugin: unset it",
    ),
    Rule(
        "JAX_PLATFORMS",
        lacks_platforms,
        Status.ERROR,
        "JAX may use neither a TPU nor the CPU: unset it",
    ),
    Rule(
        "VLLM_USE_V2_MODEL_RUNNER",
        lambda value: value != "0",
        Status.ERROR,
        "vLLM then sends step data in a form that the worker does not read: unset it",
    ),
    Rule(
        "JAX_ENABLE_X64",
        is_on,
        Status.ERROR,
        "programs take int32 and float32 and would be compiled anew for other types: unset it",
    ),
    Rule(
        "JAX_DISABLE_JIT",
        is_on,
        Status.ERROR,
        "every step would run operation by operation: unset it",
    ),
    Rule(
        "JAX_DEBUG_NANS",
        is_on,
        Status.WARNING,
        "unused cache memory may hold NaN and every step would be checked: unset it to serve",
    ),
)


def check_environment(environ: Mapping[str, str]) -> list[Finding]:
    """A finding for every variable of SHOWN_PREFIXES that is set, harmful or not."""
    rules = {rule.variable: rule for rule in RULES}
    names = sorted(name for name in environ if name.startswith(SHOWN_PREFIXES))
    if not names:
        return [Finding(SECTION, "variables", f"none of {', '.join(SHOWN_PREFIXES)} is set")]
    return [check_variable(name, environ[name], rules.get(name)) for name in names]


def check_variable(name: str, value: str, rule: Rule | None) -> Finding:
    """A finding for one variable that is set."""
    if rule is not None and rule.harmful(value):
        return Finding(SECTION, name, value, rule.status, rule.remedy)
    return Finding(SECTION, name, value)
