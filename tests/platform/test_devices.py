# SPDX-License-Identifier: Apache-2.0
"""A TPU where there is one, the CPU when asked for, one clear line otherwise."""

import sys

import pytest

from vllm_ironwood import devices
from vllm_ironwood.config import IronwoodConfig
from vllm_ironwood.errors import ConfigurationError


@pytest.fixture
def machine(monkeypatch):
    """``machine(tpu=..., libtpu=..., exported=...)`` pretends to be that machine."""

    def pretend(*, tpu: bool, libtpu: bool = True, exported: str | None = None) -> None:
        monkeypatch.setattr(devices, "tpu_attached", lambda: tpu)
        monkeypatch.setattr(devices, "libtpu_installed", lambda: libtpu)
        if exported is None:
            monkeypatch.delenv("IRONWOOD_DEVICE", raising=False)
        else:
            monkeypatch.setenv("IRONWOOD_DEVICE", exported)

    return pretend


@pytest.mark.parametrize(
    ("tpu", "exported", "configured", "chosen"),
    [
        (True, None, "auto", "tpu"),
        (True, "", "auto", "tpu"),
        (True, "auto", "tpu", "tpu"),
        (True, "cpu", "auto", "cpu"),
        (True, None, "cpu", "cpu"),
        (True, "tpu", "tpu", "tpu"),
        (False, "cpu", "auto", "cpu"),
        (False, "auto", "cpu", "cpu"),
        (False, "cpu", "cpu", "cpu"),
    ],
)
def test_device_is_the_one_asked_for_or_an_attached_tpu(tpu, exported, configured, chosen, machine):
    machine(tpu=tpu, exported=exported)
    assert devices.choose_device(configured) == chosen


@pytest.mark.parametrize(
    ("exported", "configured", "reason"),
    [
        (None, "auto", r"^no TPU was found on this machine; .*--device cpu"),
        ("tpu", "auto", r"^--device tpu: no TPU was found.*--device cpu"),
        (None, "tpu", r"^--device tpu: no TPU was found"),
        ("cpu", "tpu", r"set twice: cpu by --device or IRONWOOD_DEVICE, tpu by additional_config"),
        ("gpu", "auto", r"IRONWOOD_DEVICE=gpu is no device; choose one of auto, tpu, cpu"),
    ],
)
def test_without_a_tpu_the_cpu_is_never_chosen_unasked(exported, configured, reason, machine):
    machine(tpu=False, exported=exported)
    with pytest.raises(ConfigurationError, match=reason):
        devices.choose_device(configured)


def test_a_tpu_without_libtpu_says_how_to_install_it(machine):
    machine(tpu=True, libtpu=False)
    with pytest.raises(ConfigurationError, match=r"pip install 'vllm-ironwood\[tpu\]'"):
        devices.choose_device("auto")


@pytest.mark.parametrize(("exported", "expected"), [(None, "tpu"), ("cpu", "cpu"), ("bad", "tpu")])
def test_expected_device_never_raises(exported, expected, machine):
    machine(tpu=True, exported=exported)
    assert devices.expected_device() == expected


@pytest.mark.parametrize(
    ("vendor", "device", "attached"),
    [
        ("0x1ae0", "0x0076", True),
        ("0x1ae0", "0x0042", False),  # a network card of the same vendor
        ("0x8086", "0x0076", False),
        (None, None, False),
    ],
    ids=["TPU7x", "network card", "other vendor", "no device"],
)
def test_tpu_is_recognised_on_the_pci_bus(vendor, device, attached, tmp_path, monkeypatch):
    if vendor is not None:
        (tmp_path / "vendor").write_text(vendor + "\n")
        (tmp_path / "device").write_text(device + "\n")
    files = {"/sys/bus/pci/devices/*/vendor": [str(tmp_path / "vendor")]}
    monkeypatch.setattr(devices.glob, "glob", lambda pattern: files.get(pattern, []))
    assert devices.tpu_attached() is attached


def test_tpu_is_recognised_by_its_device_file(monkeypatch):
    files = {"/dev/accel[0-9]*": ["/dev/accel0"]}
    monkeypatch.setattr(devices.glob, "glob", lambda pattern: files.get(pattern, []))
    assert devices.tpu_attached()


def test_worker_gets_the_cpu_devices_of_jax():
    chosen = devices.select_device(IronwoodConfig(device="cpu"))
    assert {device.platform for device in chosen} == {"cpu"}


def test_a_device_that_does_not_start_is_one_line_with_the_reason_of_jax(machine, monkeypatch):
    import jax

    def fail(backend):
        raise RuntimeError("Unable to initialize backend 'tpu': in use by process 7")

    machine(tpu=True)
    monkeypatch.setattr(jax, "local_devices", fail)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    with pytest.raises(ConfigurationError, match=r"JAX cannot use the TPU: .*process 7"):
        devices.select_device(IronwoodConfig())


def test_the_memory_of_the_cpu_is_not_limited():
    assert devices.memory_limit(devices.select_device(IronwoodConfig(device="cpu")), 0.9) is None


def test_the_memory_of_a_tpu_is_limited_to_the_share():
    class Device:
        platform = "tpu"

        def memory_stats(self):
            return {"bytes_limit": 1000, "bytes_in_use": 300}

    assert devices.memory_limit([Device()], 0.75) == 750


def test_choosing_a_device_imports_no_jax():
    import subprocess

    program = (
        "import sys; from vllm_ironwood.devices import choose_device; choose_device('auto');"
        "sys.exit('jax' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
