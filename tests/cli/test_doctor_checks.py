# SPDX-License-Identifier: Apache-2.0
"""Each check of `ironwood doctor` says what is wrong and how to mend it."""

import importlib.metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from vllm_ironwood import devices as device_choice
from vllm_ironwood.cli.doctor import devices, machine, plugins, probe, software
from vllm_ironwood.cli.doctor.environment import RULES, check_environment
from vllm_ironwood.cli.doctor.findings import Finding, Status

GIB_IN_KB = 2**20


def no_probe(program: str) -> None:
    raise probe.ProbeError("ImportError: libwhatever.so")


class TestSoftware:
    def test_an_absent_distribution_is_an_error_with_the_command_that_installs_it(self):
        finding = software.check_version("jax", Requirement("jax==0.10.2"), lambda name: None)
        assert finding.status is Status.ERROR
        assert finding.remedy == 'pip install "jax==0.10.2"'

    def test_a_version_that_was_not_asked_for_is_an_error_with_both_versions(self):
        finding = software.check_version("jax", Requirement("jax==0.10.2"), lambda name: "0.11.0")
        assert finding.status is Status.ERROR
        assert "0.11.0" in finding.value
        assert "==0.10.2" in finding.value

    @pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu"])
    def test_a_local_build_of_the_wanted_version_is_in_order(self, version):
        finding = software.check_version(
            "torch", Requirement("torch==2.13.0"), lambda name: version
        )
        assert finding == Finding("software", "torch", version)

    def test_libtpu_may_be_absent(self):
        finding = software.check_version("libtpu", Requirement("libtpu==1"), lambda name: None)
        assert finding.status is Status.OK

    def test_what_is_wanted_comes_from_the_metadata_of_the_package(self):
        wanted = software.wanted_requirements()
        assert {"vllm", "torch", "jax", "jaxlib", "libtpu", "transformers"} <= wanted.keys()

    @pytest.mark.parametrize(
        ("cuda", "status", "text"),
        [(None, Status.OK, "CPU build"), ("13.0", Status.WARNING, "CUDA 13.0 build")],
    )
    def test_a_torch_built_for_cuda_is_pointed_out(self, monkeypatch, cuda, status, text):
        monkeypatch.setattr(software, "run_probe", lambda program: cuda)
        finding = software.check_build(Finding("software", "torch", "2.13.0"))
        assert finding.status is status
        assert text in finding.value

    def test_a_torch_that_does_not_import_is_an_error_with_its_reason(self, monkeypatch):
        monkeypatch.setattr(software, "run_probe", no_probe)
        finding = software.check_build(Finding("software", "torch", "2.13.0"))
        assert finding.status is Status.ERROR
        assert "libwhatever.so" in finding.value

    def test_a_vllm_with_device_code_is_pointed_out(self, monkeypatch):
        files = [Path("vllm/_C.abi3.so"), Path("vllm/__init__.py")]
        monkeypatch.setattr(importlib.metadata, "files", lambda name: files)
        assert software.check_build(Finding("software", "vllm", "0.33.0")).status is Status.WARNING
        files.pop(0)
        assert software.check_build(Finding("software", "vllm", "0.33.0")).status is Status.OK


class TestPlugins:
    def test_an_entry_point_that_is_not_registered_is_an_error(self, monkeypatch):
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda **selection: [])
        finding = plugins.check_entry_point("vllm.platform_plugins", "ironwood", None)
        assert finding.status is Status.ERROR
        assert "0 entry points" in finding.value

    def test_an_entry_point_that_does_not_load_is_an_error_with_its_reason(self, monkeypatch):
        answer = {"ironwood_models": "ImportError: no", "platform": "vllm_ironwood.platform.P"}
        monkeypatch.setattr(plugins, "run_probe", lambda program: answer)
        platform, models, active = plugins.check_plugins()
        assert models.status is Status.ERROR
        assert "ImportError: no" in models.value
        assert {platform.status, active.status} == {Status.OK}

    def test_another_active_platform_is_an_error_that_names_it(self):
        finding = plugins.check_active_platform({"platform": "vllm.platforms.cpu.CpuPlatform"})
        assert finding.status is Status.ERROR
        assert "vllm.platforms.cpu.CpuPlatform" in finding.value

    def test_a_vllm_that_does_not_start_is_an_error_with_its_reason(self, monkeypatch):
        monkeypatch.setattr(plugins, "run_probe", no_probe)
        active = plugins.check_plugins()[-1]
        assert active.status is Status.ERROR
        assert "libwhatever.so" in active.value


class TestDevices:
    def test_without_a_tpu_the_cpu_can_be_chosen_and_auto_says_how(self, monkeypatch):
        monkeypatch.setattr(device_choice, "tpu_attached", lambda: False)
        monkeypatch.setenv(device_choice.DEVICE_VARIABLE, "tpu")
        auto, tpu, cpu = map(devices.check_choice, ("auto", "tpu", "cpu"))
        assert {finding.status for finding in (auto, tpu, cpu)} == {Status.OK}
        assert auto.value.startswith("refused")
        assert "--device cpu" in auto.value
        assert tpu.value.startswith("refused")
        assert cpu.value == "runs on the CPU"
        assert device_choice.os.environ[device_choice.DEVICE_VARIABLE] == "tpu"

    def test_a_tpu_is_chosen_unasked(self, monkeypatch):
        monkeypatch.setattr(device_choice, "tpu_attached", lambda: True)
        monkeypatch.setattr(device_choice, "libtpu_installed", lambda: True)
        monkeypatch.delenv(device_choice.DEVICE_VARIABLE, raising=False)
        assert devices.check_choice("auto").value == "runs on the TPU"
        assert device_choice.DEVICE_VARIABLE not in device_choice.os.environ

    @pytest.mark.parametrize(
        ("libtpu", "remedy"), [(False, "vllm-ironwood[tpu]"), (True, "unset JAX_PLATFORMS")]
    )
    def test_a_tpu_that_jax_cannot_start_is_an_error(self, monkeypatch, libtpu, remedy):
        monkeypatch.setattr(device_choice, "tpu_attached", lambda: True)
        monkeypatch.setattr(device_choice, "libtpu_installed", lambda: libtpu)
        monkeypatch.setattr(devices, "run_probe", no_probe)
        finding = devices.check_devices()[0]
        assert finding.status is Status.ERROR
        assert "libwhatever.so" in finding.value
        assert remedy in finding.remedy

    def test_devices_are_counted_by_kind(self):
        assert devices.describe(["TPU7x", "TPU7x", "cpu"]) == "2 x TPU7x, 1 x cpu"


class TestMachine:
    @pytest.mark.parametrize(("available", "status"), [(3.9, Status.WARNING), (4.0, Status.OK)])
    def test_little_memory_is_pointed_out(self, available, status):
        meminfo = (
            f"MemTotal:       {16 * GIB_IN_KB} kB\n"
            f"MemFree:         1 kB\n"
            f"MemAvailable:   {int(available * GIB_IN_KB)} kB\n"
        )
        finding = machine.check_memory(meminfo)
        assert finding.status is status
        assert finding.value == f"{available:.1f} of 16.0 GiB available"

    @pytest.mark.parametrize(("free", "status"), [(1.9, Status.WARNING), (2.0, Status.OK)])
    def test_a_full_disk_is_pointed_out(self, free, status):
        finding = machine.check_disk(Path("/cache"), int(free * 2**30) + 1)
        assert finding.status is status
        assert "/cache" in finding.value

    def test_a_cache_that_does_not_exist_yet_is_judged_by_its_parent(self, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not" / "yet"))
        assert machine.cache_directory() == tmp_path


class TestEnvironment:
    @pytest.mark.parametrize(
        ("name", "value", "status"),
        [
            ("IRONWOOD_DEVICE", "gpu", Status.ERROR),
            ("IRONWOOD_DEVICE", "cpu", Status.OK),
            ("VLLM_PLUGINS", "", Status.ERROR),
            ("VLLM_PLUGINS", "ironwood", Status.ERROR),
            ("VLLM_PLUGINS", "other, ironwood,ironwood_models", Status.OK),
            ("VLLM_TARGET_DEVICE", "cpu", Status.ERROR),
            ("VLLM_TARGET_DEVICE", "empty", Status.OK),
            ("VLLM_USE_V2_MODEL_RUNNER", "1", Status.ERROR),
            ("VLLM_USE_V2_MODEL_RUNNER", "0", Status.OK),
            ("JAX_PLATFORMS", "cuda", Status.ERROR),
            ("JAX_PLATFORMS", "cuda,cpu", Status.OK),
            ("JAX_PLATFORMS", "", Status.OK),
            ("JAX_ENABLE_X64", "True", Status.ERROR),
            ("JAX_ENABLE_X64", "0", Status.OK),
            ("JAX_DISABLE_JIT", "1", Status.ERROR),
            ("JAX_DISABLE_JIT", "false", Status.OK),
            ("JAX_DEBUG_NANS", "1", Status.WARNING),
            ("JAX_DEBUG_NANS", "off", Status.OK),
            ("XLA_FLAGS", "--xla_dump_to=/tmp/x", Status.OK),
        ],
    )
    def test_each_variable_is_shown_and_judged(self, name, value, status):
        [finding] = check_environment({name: value, "HOME": "/home/user"})
        assert (finding.name, finding.value, finding.status) == (name, value, status)
        assert bool(finding.remedy) == (status is not Status.OK)

    def test_every_rule_is_about_a_variable_that_is_shown(self):
        for rule in RULES:
            assert check_environment({rule.variable: "x"})[0].name == rule.variable

    def test_no_variable_at_all_is_said_in_one_line(self):
        [finding] = check_environment({"HOME": "/home/user"})
        assert finding.status is Status.OK


class TestProbe:
    def test_the_answer_is_the_last_line(self):
        assert probe.run_probe("print('noise'); print('[1, 2]')") == [1, 2]

    def test_a_crash_gives_the_last_line_of_the_traceback(self):
        with pytest.raises(probe.ProbeError, match=r"^ValueError: no$"):
            probe.run_probe("raise ValueError('no')")

    def test_a_silent_death_gives_the_exit_code(self):
        with pytest.raises(probe.ProbeError, match="exit code 3"):
            probe.run_probe("import os; os._exit(3)")

    def test_a_hang_ends(self):
        with pytest.raises(probe.ProbeError, match=r"no answer within 0\.5 s"):
            probe.run_probe("while True: pass", timeout=0.5)

    @pytest.mark.parametrize("program", ["print('hello')", ""])
    def test_an_answer_that_is_no_json_is_quoted(self, program):
        with pytest.raises(probe.ProbeError, match="unexpected answer"):
            probe.run_probe(program)
