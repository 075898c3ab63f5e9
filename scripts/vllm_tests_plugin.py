# SPDX-License-Identifier: Apache-2.0
"""pytest plugin that lets vLLM's own tests run on this plugin with a small checkpoint.

`scripts/vllm_tests.py` loads it. It rewrites the arguments of every `LLM` and `vllm serve` that a
test starts, deselects the tests that the plan names, and writes one JSON line for each outcome.
What it shall do is in the JSON file that the variable IRONWOOD_VLLM_TESTS names.
"""

import functools
import json
import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "IRONWOOD_VLLM_TESTS"

MAX_MODEL_LEN = 2048
MAX_NUM_SEQS = 16
MAX_NUM_BATCHED_TOKENS = 512
# A compile after the start is fatal: every test then also shows that nothing compiles late.
ADDITIONAL_CONFIG = {"device": "cpu", "cpu_cache_gib": 0.25, "forbid_recompilation": True}

# They choose a GPU's kernels, or an adapter that only some tests of a file ask for.
DROPPED_OPTIONS = frozenset(
    {
        "--enable-lora",
        "--lora-modules",
        "--max-lora-rank",
        "--max-loras",
        "--max-cpu-loras",
    }
)
# vLLM asks for chunked prefill where GDN states are in the prefix cache; the tests' own helper
# turns it off.
DROPPED_ARGUMENTS = frozenset({"compilation_config", "enable_chunked_prefill", "kernel_config"})
REASON_LENGTH = 300


def supported_dtype(dtype: Any) -> Any:
    """float32 for float16, which is refused; some tests compare numbers with transformers'."""
    return "float32" if dtype in ("half", "float16") else dtype


def llm_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `LLM` for the checkpoint on the CPU, from those of a test."""
    result = {key: value for key, value in arguments.items() if key not in DROPPED_ARGUMENTS}
    result["dtype"] = supported_dtype(result.get("dtype") or "auto")
    result["max_model_len"] = min(result.get("max_model_len") or MAX_MODEL_LEN, MAX_MODEL_LEN)
    result["max_num_seqs"] = min(result.get("max_num_seqs") or MAX_NUM_SEQS, MAX_NUM_SEQS)
    result.setdefault("max_num_batched_tokens", MAX_NUM_BATCHED_TOKENS)
    result["additional_config"] = {**(result.get("additional_config") or {}), **ADDITIONAL_CONFIG}
    return result


def option_groups(arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """A command line as (option, its values); `--a=b` is (`--a`, [`b`]), `_` in names is `-`.

    Raises ValueError when a value stands before the first option.
    """
    groups: list[tuple[str, list[str]]] = []
    for argument in arguments:
        if argument.startswith("-") and not argument[1:2].isdigit():
            name, equals, value = argument.partition("=")
            groups.append((name.replace("_", "-"), [value] if equals else []))
        elif groups:
            groups[-1][1].append(argument)
        else:
            raise ValueError(f"{argument!r} belongs to no option; give the options first")
    return groups


def serve_arguments(arguments: Sequence[str]) -> list[str]:
    """Arguments of `vllm serve` for the checkpoint on the CPU, from those of a test."""
    limits = {"--max-model-len": MAX_MODEL_LEN, "--max-num-seqs": MAX_NUM_SEQS}
    values = {name: [str(limit)] for name, limit in limits.items()}
    values["--max-num-batched-tokens"] = [str(MAX_NUM_BATCHED_TOKENS)]
    result = []
    for name, given in option_groups(arguments):
        if name in DROPPED_OPTIONS:
            continue
        if name in limits:
            values[name] = [str(min(int(given[0]), limits[name]))]
        elif name in values:
            values[name] = given
        elif name == "--dtype":
            result += [name, *map(supported_dtype, given)]
        else:
            result += [name, *given]
    for name, given in values.items():
        result += [name, *given]
    return [*result, "--additional-config", json.dumps(ADDITIONAL_CONFIG)]


def reason_for(name: str, reasons: Mapping[str, str]) -> str | None:
    """The reason of the first pattern that the test's name fits.

    `test_a` fits all parameters of test_a; a pattern with `[` or `*` is matched as it stands,
    with `*` for anything and every other character for itself.
    """
    for pattern, reason in reasons.items():
        if fnmatchcase(name, pattern.replace("[", "[[]")) or name.partition("[")[0] == pattern:
            return reason
    return None


def name_of(nodeid: str) -> str:
    """`test_a[x]` or `TestClass::test_a[x]` of a node id: what follows the file."""
    return nodeid.partition("::")[2]


class Recorder:
    """Writes each outcome when it is known, so that a run that is cut short keeps the others."""

    def __init__(self, results: Path, deselect: Mapping[str, str]) -> None:
        self._results = results
        self._deselect = deselect

    def write(self, nodeid: str, outcome: str, message: str = "") -> None:
        line = json.dumps({"test": name_of(nodeid), "outcome": outcome, "message": message})
        with self._results.open("a") as file:
            file.write(line + "\n")

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        kept, gone = [], []
        for item in items:
            reason = reason_for(name_of(item.nodeid), self._deselect)
            if reason is None:
                kept.append(item)
                self.write(item.nodeid, "not run")
            else:
                gone.append(item)
                self.write(item.nodeid, "deselected", reason)
        items[:] = kept
        config.hook.pytest_deselected(items=gone)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash else str(report.longrepr)
            self.write(report.nodeid, "failed", f"{report.when}: {text}"[:REASON_LENGTH])
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            self.write(report.nodeid, "skipped", reason[:REASON_LENGTH])
        elif report.when == "call":
            self.write(report.nodeid, "passed")


def rewrite_llm() -> None:
    """Let every `LLM(...)` of this process go through `llm_arguments`."""
    from vllm import LLM

    original = LLM.__init__

    @functools.wraps(original)
    def start(self, model, *positional, **arguments):
        original(self, model, *positional, **llm_arguments(arguments))

    LLM.__init__ = start


def rewrite_references() -> None:
    """Let the tests' helper for transformers compute on the CPU, in the dtype of the engine."""
    from tests.conftest import HfRunner

    original = HfRunner.__init__

    @functools.wraps(original)
    def start(self, model, dtype="auto", **arguments):
        original(self, model, supported_dtype(dtype), **arguments)

    HfRunner.__init__ = start
    HfRunner.get_default_device = lambda self: "cpu"


def count_devices() -> None:
    """Answer the tests' decorators that skip for want of GPUs; vLLM's platform class does not."""
    from vllm.platforms import current_platform

    type(current_platform).device_count = classmethod(lambda cls: 1)


def rewrite_servers() -> None:
    """Let every server of the tests' own helper go through `serve_arguments`."""
    from tests.utils import RemoteVLLMServer

    original = RemoteVLLMServer.__init__

    @functools.wraps(original)
    def start(self, model, vllm_serve_args, **arguments):
        original(self, model, serve_arguments(vllm_serve_args), **arguments)

    RemoteVLLMServer.__init__ = start


def pytest_configure(config: pytest.Config) -> None:
    order = json.loads(Path(os.environ[VARIABLE]).read_text())
    config.pluginmanager.register(Recorder(Path(order["results"]), order["deselect"]))


def pytest_sessionstart(session: pytest.Session) -> None:
    """After the tests' own conftest.py has been loaded, before any of them is collected."""
    count_devices()
    rewrite_llm()
    rewrite_references()
    rewrite_servers()
