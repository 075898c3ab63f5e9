# SPDX-License-Identifier: Apache-2.0
"""A start that fails: one clear line, a non-zero exit, no traceback, no process left behind."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.platform.forked_commands import processes_of_session

PREFIX = "vllm-ironwood: error: "
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "IRONWOOD_DEVICE": ""}


class Ended(NamedTuple):
    code: int
    left_over: list[str]
    output: str


def truncated_copy(good: Path, directory: Path) -> str:
    copy = shutil.copytree(good, directory / "truncated")
    weights = copy / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1)
    return str(copy)


def foreign_copy(good: Path, directory: Path) -> str:
    copy = shutil.copytree(good, directory / "llama")
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 512}
    (copy / "config.json").write_text(json.dumps(config))
    return str(copy)


def serve(model: str, *arguments: str, **more: Any) -> dict[str, Any]:
    return {"argv": ["vllm", "serve", model, "--port", "0", *arguments], **more}


def cases(good: str, truncated: str, foreign: str) -> dict[str, tuple[dict[str, Any], str]]:
    """name -> (case, what its one line must contain)."""
    cpu = ("--device", "cpu")
    core_fails = (
        "from vllm_ironwood import devices, errors\n"
        "@errors.one_line_exit()\n"
        "def fail(config): raise errors.ConfigurationError('the device is\\non fire')\n"
        "devices.select_device = fail\n"
    )
    return {
        "no such directory": (serve("/no/such/model", *cpu), "/no/such/model: no such directory"),
        "weights truncated": (
            serve(truncated, *cpu),
            "model.safetensors: not a whole safetensors file",
        ),
        "foreign architecture": (serve(foreign, *cpu), "LlamaForCausalLM"),
        "name of the hub": (serve("someone/some-model", *cpu), "cached snapshot"),
        "no TPU": (serve(good), "no TPU was found on this machine; to run on the CPU, pass"),
        "TPU asked for": (serve(good, "--device", "tpu"), "--device tpu: no TPU was found"),
        "unsupported option": (
            serve(good, *cpu, "--pipeline-parallel-size", "2"),
            "Pipeline parallelism is not supported (pipeline_parallel_size=2)",
        ),
        "unknown setting": (
            serve(good, *cpu, "--additional-config", '{"turbo": 1}'),
            "unknown key 'turbo'",
        ),
        "refused by vLLM": (
            serve(good, *cpu, "--max-model-len", "99999999"),
            "max_model_len (99999999) is greater than",
        ),
        "engine core": (
            serve(
                good,
                *cpu,
                environment={"VLLM_WORKER_MULTIPROC_METHOD": "fork"},
                program=core_fails,
            ),
            "the device is on fire",
        ),
        "program": (
            {"argv": ["my_program.py"], "program": f"LLM({good!r}, tensor_parallel_size=2)"},
            "Tensor parallelism is not supported",
        ),
        "program with a foreign model": (
            {
                "argv": ["my_program.py"],
                "environment": {"IRONWOOD_DEVICE": "cpu"},
                "program": f"LLM({foreign!r})",
            },
            "This architecture is not supported (LlamaForCausalLM)",
        ),
        "program whose engine core fails": (
            {
                "argv": ["my_program.py"],
                "environment": {"IRONWOOD_DEVICE": "cpu", "VLLM_WORKER_MULTIPROC_METHOD": "fork"},
                "program": f"{core_fails}LLM({good!r})",
            },
            "the device is on fire",
        ),
    }


NAMES = list(cases("", "", ""))


@pytest.fixture(scope="module")
def ended(tiny_checkpoint, tmp_path_factory):
    """``ended(name)`` -> how the case ended, and the line that was wanted."""
    directory = tmp_path_factory.mktemp("commands")
    wanted = cases(
        str(tiny_checkpoint),
        truncated_copy(tiny_checkpoint, directory),
        foreign_copy(tiny_checkpoint, directory),
    )
    file = directory / "cases.json"
    file.write_text(json.dumps({name: case for name, (case, _) in wanted.items()}))
    runner = Path(__file__).with_name("forked_commands.py")
    subprocess.run(
        [sys.executable, runner, file], env=os.environ | ENVIRONMENT, check=True, timeout=300
    )
    results = json.loads((directory / "results.json").read_text())

    def look_up(name: str) -> tuple[Ended, str]:
        output = (directory / f"{name}.out").read_text()
        return Ended(*results[name], output), wanted[name][1]

    return look_up


def errors_in(output: str) -> list[str]:
    return [line for line in output.splitlines() if PREFIX in line]


@pytest.mark.parametrize("name", NAMES)
def test_failed_start_is_one_clear_line(name, ended):
    end, reason = ended(name)
    assert "Traceback" not in end.output
    (line,) = errors_in(end.output)
    assert reason in line
    assert end.code == 1
    assert end.left_over == []


def test_a_bug_keeps_its_traceback(tmp_path):
    """Only what the user can mend is shortened."""
    program = (
        "from vllm_ironwood.errors import install_excepthook\n"
        "install_excepthook()\ninstall_excepthook()\n"
        "raise TypeError('a bug')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.count(b"Traceback") == 1
    assert ended.stderr.count(b"TypeError: a bug") == 1


def test_the_command_itself_ends_in_one_line_and_leaves_nothing(tiny_checkpoint, tmp_path):
    """The console script, with no shortcut: a truncated file."""
    wrong = truncated_copy(tiny_checkpoint, tmp_path)
    command = [Path(sys.executable).with_name("vllm"), "serve", wrong, "--device", "cpu"]
    process = subprocess.Popen(
        command,
        env=os.environ | ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Traceback" not in output
    (line,) = errors_in(output)
    assert line.startswith(PREFIX + f"{wrong}/model.safetensors: not a whole safetensors file")
    assert processes_of_session(process.pid) == []
