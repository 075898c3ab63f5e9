# SPDX-License-Identifier: Apache-2.0
"""Which devices there are, which of them JAX can use, and what `--device` would choose."""

from pathlib import Path
from typing import NamedTuple

from vllm_ironwood.cli.doctor.findings import Finding, Status
from vllm_ironwood.cli.doctor.probe import ProbeError, run_probe
from vllm_ironwood.cli.doctor.software import installed_version, wanted_requirements

SECTION = "devices"
PCI_DEVICES = Path("/sys/bus/pci/devices")
GOOGLE = "0x1ae0"  # PCI vendor of TPU chips

JAX_PROGRAM = """
import json, jax
print(json.dumps([[device.platform, device.device_kind] for device in jax.devices()]))
"""


class JaxDevice(NamedTuple):
    """A device as JAX names it: platform "tpu" or "cpu", kind such as "TPU7x"."""

    platform: str
    kind: str


def check_devices() -> list[Finding]:
    """Chips on the bus, devices in JAX, and what each choice of `--device` comes to."""
    chips = count_google_chips(PCI_DEVICES)
    findings = [Finding(SECTION, "TPU chips", f"{chips} on the PCI bus")]
    try:
        found = [JaxDevice(*device) for device in run_probe(JAX_PROGRAM)]
    except ProbeError as error:
        value = f"no devices: {error}"
        return [*findings, Finding(SECTION, "JAX", value, Status.ERROR, jax_remedy(chips))]
    return [*findings, check_jax_devices(chips, found), *check_choices(found)]


def count_google_chips(directory: Path) -> int:
    """Number of PCI devices whose vendor is that of TPU chips."""
    vendors = (path.read_text().strip() for path in directory.glob("*/vendor"))
    return sum(vendor == GOOGLE for vendor in vendors)


def check_jax_devices(chips: int, found: list[JaxDevice]) -> Finding:
    """A machine with chips must show TPU devices."""
    counts = {device: found.count(device) for device in found}
    value = ", ".join(f"{count} x {device.kind}" for device, count in counts.items())
    if chips and not any(device.platform == "tpu" for device in found):
        value += " (the TPU is not used)"
        return Finding(SECTION, "JAX", value, Status.ERROR, jax_remedy(chips))
    return Finding(SECTION, "JAX", value)


def jax_remedy(chips: int) -> str:
    """What to do when JAX shows no device, or no TPU on a machine that has one."""
    if not chips:
        return "look at the software and environment sections"
    if installed_version("libtpu") is None:
        wanted = wanted_requirements().get("libtpu")
        return f'pip install "{wanted or "libtpu"}"'
    return "unset JAX_PLATFORMS, and stop the process that holds the TPU if there is one"


def check_choices(found: list[JaxDevice]) -> list[Finding]:
    """What `--device auto`, `tpu` and `cpu` would use."""
    has_tpu = any(device.platform == "tpu" for device in found)
    return [
        Finding(SECTION, "--device auto", "uses the TPU" if has_tpu else "uses the CPU"),
        Finding(SECTION, "--device tpu", "possible" if has_tpu else "refused: no TPU here"),
        Finding(SECTION, "--device cpu", "possible"),
    ]
