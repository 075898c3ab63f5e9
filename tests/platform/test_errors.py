# SPDX-License-Identifier: Apache-2.0
"""Which errors are shortened to one line, and what the line says."""

import os
import subprocess
import sys

import pytest

from vllm_ironwood.errors import ConfigurationError, one_line_exit, startup_failure_line

AS_COMMAND = ["/somewhere/bin/vllm", "serve"]


def raised(error: BaseException, file: str = "program.py") -> tuple[BaseException, object]:
    """The error with a traceback that passes through a file of that name."""
    try:
        exec(compile("raise error", file, "exec"), {"error": error})
    except type(error) as caught:
        return caught, caught.__traceback__


@pytest.fixture
def as_command(monkeypatch):
    monkeypatch.setattr(sys, "argv", AS_COMMAND)


def test_message_becomes_one_line():
    assert (
        startup_failure_line(ConfigurationError("first\n  second"), None)
        == "vllm-ironwood: error: first second"
    )


def test_errors_of_a_users_program_keep_their_traceback():
    for error in (ValueError("mine"), KeyboardInterrupt(), RuntimeError("mine")):
        assert startup_failure_line(*raised(error, "vllm/engine/arg_utils.py")) is None


def test_what_vllm_says_about_arguments_is_one_line_of_the_command(as_command):
    line = startup_failure_line(*raised(ValueError("too\nlong"), "/x/vllm/engine/arg_utils.py"))
    assert line == "vllm-ironwood: error: too long"


@pytest.mark.parametrize(
    ("error", "file"),
    [
        (ValueError("later"), "/x/vllm/v1/engine/core.py"),
        (TypeError("a bug"), "/x/vllm/engine/arg_utils.py"),
        (AssertionError("a bug"), "/x/vllm/engine/arg_utils.py"),
        (KeyError("a bug"), "/x/vllm/engine/arg_utils.py"),
    ],
    ids=repr,
)
def test_bugs_keep_their_traceback_in_the_command_too(error, file, as_command):
    assert startup_failure_line(*raised(error, file)) is None


def test_pydantic_is_unwrapped(as_command):
    from pydantic import ValidationError
    from vllm.config import CacheConfig

    with pytest.raises(ValidationError) as caught:
        CacheConfig(cache_dtype="no such type")
    line = startup_failure_line(*raised(caught.value, "/x/vllm/engine/arg_utils.py"))
    assert line.startswith("vllm-ironwood: error: Invalid kv_cache_dtype: 'no such type'")
    assert "pydantic" not in line


def test_interrupt_of_the_command_is_no_traceback(as_command):
    assert startup_failure_line(KeyboardInterrupt(), None) == "vllm-ironwood: interrupted"


def test_engine_core_that_failed_without_a_line_is_pointed_at(as_command):
    error = RuntimeError("Engine core initialization failed. See root cause above.")
    assert startup_failure_line(error, None).endswith("its own error is above")


def test_expected_error_ends_a_child_process_at_once_in_one_line():
    program = (
        "import multiprocessing, sys\n"
        "from vllm_ironwood.errors import one_line_exit\n"
        "@one_line_exit(KeyError)\n"
        "def fail(): raise KeyError('gone\\nmissing')\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('fork').Process(target=fail)\n"
        "    child.start(); child.join(); sys.exit(child.exitcode)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == os.EX_CONFIG
    assert ended.stderr == "vllm-ironwood: error: 'gone\\nmissing'\n"


def test_in_the_callers_own_process_it_is_an_exception():
    with pytest.raises(ConfigurationError, match="no memory"), one_line_exit(MemoryError):
        raise MemoryError("no memory")


def test_unexpected_errors_pass_unchanged():
    with pytest.raises(TypeError, match="a bug"), one_line_exit(ValueError):
        raise TypeError("a bug")


def test_steps_that_succeed_return_their_result():
    @one_line_exit()
    def step(value):
        return value + 1

    assert [step(1), step(2)] == [2, 3]
