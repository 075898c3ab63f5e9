# SPDX-License-Identifier: Apache-2.0
"""Which devices JAX can use, and what each choice of `--device` comes to."""

import os
from collections import Counter
from collections.abc import Iterable

from vllm_ironwood import devices
from vllm_ironwood.cli.doctor.findings import Finding, Status
from vllm_ironwood.cli.doctor.probe import ProbeError, run_probe
from vllm_ironwood.errors import ConfigurationError

SECTION = "devices"

JAX_PROGRAM = """
import json, jax
print(json.dumps([device.device_kind for device in jax.devices({backend})]))
"""


def check_devices() -> list[Finding]:
    """Findings on the devices of this machine and on what vLLM would choose."""
    tpu = check_jax("tpu") if devices.tpu_attached() else Finding(SECTION, "tpu", "none attached")
    return [tpu, check_jax("cpu"), *map(check_choice, devices.DEVICE_CHOICES)]


def check_jax(platform: str) -> Finding:
    """Does JAX start `platform` ("cpu" or "tpu"), and with which devices?"""
    try:
        kinds = run_probe(JAX_PROGRAM.format(backend=repr(platform)))
    except ProbeError as error:
        value = f"JAX cannot use it: {error}"
        return Finding(SECTION, platform, value, Status.ERROR, jax_remedy(platform))
    return Finding(SECTION, platform, describe(kinds))


def describe(kinds: Iterable[str]) -> str:
    """Device kinds with their number: "4 x TPU7x"."""
    return ", ".join(f"{count} x {kind}" for kind, count in Counter(kinds).items())


def jax_remedy(platform: str) -> str:
    """What to do when JAX shows no device of `platform`."""
    if platform == "cpu":
        return 'unset JAX_PLATFORMS; if that does not help: pip install "vllm-ironwood[cpu]"'
    if not devices.libtpu_installed():
        return 'pip install "vllm-ironwood[tpu]"'
    return "unset JAX_PLATFORMS, and stop the process that holds the TPU if there is one"


def check_choice(choice: str) -> Finding:
    """What vLLM would do with `--device CHOICE`; being refused is an answer, not a fault."""
    try:
        value = f"runs on the {choose(choice).upper()}"
    except ConfigurationError as error:
        value = f"refused: {error}"
    return Finding(SECTION, f"--device {choice}", value)


def choose(choice: str) -> str:
    """The device for `--device CHOICE`, which vLLM's command line exports as a variable."""
    before = os.environ.get(devices.DEVICE_VARIABLE)
    os.environ[devices.DEVICE_VARIABLE] = choice
    try:
        return devices.choose_device("auto")
    finally:
        del os.environ[devices.DEVICE_VARIABLE]
        if before is not None:
            os.environ[devices.DEVICE_VARIABLE] = before
