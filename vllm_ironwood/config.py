# SPDX-License-Identifier: Apache-2.0
"""The settings of vllm-ironwood itself: what ``--additional-config`` may hold.

Everything that vLLM has an argument for is read from vLLM's own configuration. No setting is
needed for speed: the defaults are the fast path.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import TYPE_CHECKING, Any

from vllm_ironwood.devices import DEVICE_CHOICES
from vllm_ironwood.errors import ConfigurationError

if TYPE_CHECKING:
    import jax
    from vllm.config import VllmConfig


@dataclass(frozen=True)
class IronwoodConfig:
    """Settings of one engine.

    Attributes:
        device: "tpu", "cpu", or "auto" (a TPU, or an error where there is none). Once vLLM's
            configuration is checked it holds the device that was chosen.
        forbid_recompilation: make a compile after the server is ready fatal, rather than an
            error that is counted and logged.
        cpu_cache_gib: on the CPU, GiB for attention pages and GDN states together. A TPU
            follows ``--gpu-memory-utilization``.
        state_slots: slots of the GDN state pool; None derives them from ``--max-num-seqs``.
        debug_fill_nan: fill free pages and slots with NaN before each step, so that a read
            of memory that belongs to nobody shows.
    """

    device: str = "auto"
    forbid_recompilation: bool = False
    cpu_cache_gib: float = 1.0
    state_slots: int | None = None
    debug_fill_nan: bool = False

    @classmethod
    def from_additional_config(cls, settings: Any) -> "IronwoodConfig":
        """Check and read the mapping given as ``additional_config``.

        Raises:
            ConfigurationError: no mapping, an unknown key, or a value of the wrong type or
                range; the message names the key.
        """
        if not isinstance(settings, Mapping):
            raise ConfigurationError(
                f"additional_config must be a mapping, got {type(settings).__name__}"
            )
        known = [field.name for field in fields(cls)]
        for key in settings:
            if key not in known:
                raise ConfigurationError(
                    f"additional_config has an unknown key {key!r}; the keys are {', '.join(known)}"
                )
        for key, value in settings.items():
            if not _CHECKS[key][0](value):
                raise ConfigurationError(
                    f"additional_config: {key} must be {_CHECKS[key][1]}, got {value!r}"
                )
        return cls(**settings)

    @classmethod
    def from_vllm_config(cls, vllm_config: "VllmConfig") -> "IronwoodConfig":
        """The settings inside a vLLM configuration (see :meth:`from_additional_config`)."""
        return cls.from_additional_config(vllm_config.additional_config)

    def describe(self, devices: "list[jax.Device]") -> str:
        """One line for the log: the devices in use and every setting with its value."""
        kinds = Counter(device.device_kind for device in devices)
        found = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
        values = ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))
        return f"vllm-ironwood runs on {found} with {values}"


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


_CHECKS = {
    "device": (lambda value: value in DEVICE_CHOICES, f"one of {', '.join(DEVICE_CHOICES)}"),
    "forbid_recompilation": (_is_flag, "true or false"),
    "cpu_cache_gib": (
        lambda value: isinstance(value, (int, float)) and not _is_flag(value) and 0 < value < inf,
        "a number of GiB above 0",
    ),
    "state_slots": (lambda value: value is None or _is_count(value), "a whole number above 0"),
    "debug_fill_nan": (_is_flag, "true or false"),
}
