# SPDX-License-Identifier: Apache-2.0
"""Which device to run on: a TPU where there is one, the CPU when asked for, never by surprise.

Choosing (:func:`choose_device`) is cheap and imports no JAX: it runs in the front end, whose
engine core may be forked. Taking the device (:func:`select_device`) is the worker's.
"""

import glob
import importlib.util
import os
from typing import TYPE_CHECKING

from vllm_ironwood.errors import ConfigurationError

if TYPE_CHECKING:
    import jax

    from vllm_ironwood.config import IronwoodConfig

DEVICE_VARIABLE = "IRONWOOD_DEVICE"
DEVICE_CHOICES = ("auto", "tpu", "cpu")

_GOOGLE_PCI_VENDOR = "0x1ae0"
# PCI device ids of TPU v2/v3, v4, v5p, v5e, v6e and TPU7x; Google's network card has others.
_TPU_PCI_DEVICES = frozenset({"0x0027", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"})


def choose_device(configured: str) -> str:
    """The device to use: ``"tpu"`` or ``"cpu"``.

    Args:
        configured: the ``device`` of ``--additional-config``, one of :data:`DEVICE_CHOICES`.

    Raises:
        ConfigurationError: the environment variable (set by ``--device``) holds another
            word or contradicts ``configured``; or a TPU is wanted and there is none.
    """
    exported = os.environ.get(DEVICE_VARIABLE) or "auto"
    if exported not in DEVICE_CHOICES:
        raise ConfigurationError(
            f"{DEVICE_VARIABLE}={exported} is no device; choose one of {', '.join(DEVICE_CHOICES)}"
        )
    if "auto" not in (exported, configured) and exported != configured:
        raise ConfigurationError(
            f"the device is set twice: {exported} by --device or {DEVICE_VARIABLE}, "
            f"{configured} by additional_config; keep one"
        )
    wanted = configured if exported == "auto" else exported
    if wanted == "cpu":
        return "cpu"
    if not tpu_attached():
        asked = "--device tpu: no TPU" if wanted == "tpu" else "no TPU"
        raise ConfigurationError(
            f"{asked} was found on this machine; to run on the CPU, "
            'pass --device cpu (in Python: LLM(..., additional_config={"device": "cpu"}))'
        )
    if not libtpu_installed():
        raise ConfigurationError(
            "a TPU is attached but libtpu is not installed; "
            "run: pip install 'vllm-ironwood[tpu]' (or pass --device cpu)"
        )
    return "tpu"


def expected_device() -> str:
    """``"tpu"`` or ``"cpu"``, as far as it shows without a configuration; never raises."""
    return "tpu" if os.environ.get(DEVICE_VARIABLE) != "cpu" and tpu_attached() else "cpu"


def tpu_attached() -> bool:
    """Whether the machine has a TPU chip, from its device files and the PCI bus."""
    return bool(glob.glob("/dev/accel[0-9]*")) or any(
        _pci_id(path) == _GOOGLE_PCI_VENDOR
        and _pci_id(os.path.join(os.path.dirname(path), "device")) in _TPU_PCI_DEVICES
        for path in glob.glob("/sys/bus/pci/devices/*/vendor")
    )


def libtpu_installed() -> bool:
    """Whether JAX will find the TPU runtime (not whether it starts)."""
    return (
        bool(os.environ.get("TPU_LIBRARY_PATH")) or importlib.util.find_spec("libtpu") is not None
    )


def select_device(config: "IronwoodConfig") -> "list[jax.Device]":
    """Make JAX use the chosen platform and return this process's devices of it.

    The worker calls it in ``init_device``, before anything else touches JAX. The CPU stays
    available beside a TPU, for arrays that live on the host.

    Raises:
        ConfigurationError: see :func:`choose_device`; or JAX cannot start the device, with
            the reason that JAX gives.
    """
    device = choose_device(config.device)
    import jax

    jax.config.update("jax_platforms", "cpu" if device == "cpu" else "tpu,cpu")
    try:
        return jax.local_devices(backend=device)
    except RuntimeError as error:
        raise ConfigurationError(f"JAX cannot use the {device.upper()}: {error}") from error


def memory_limit(devices: "list[jax.Device]", memory_utilization: float) -> int | None:
    """Bytes of one device that weights, caches and steps may take together.

    Args:
        devices: those of :func:`select_device`.
        memory_utilization: vLLM's ``gpu_memory_utilization``, a share of a TPU's memory.

    Returns:
        None on the CPU, where only the caches are limited, by ``cpu_cache_gib``.
    """
    if devices[0].platform == "cpu":
        return None
    return int(devices[0].memory_stats()["bytes_limit"] * memory_utilization)


def _pci_id(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
