# SPDX-License-Identifier: Apache-2.0
"""Every configuration is honoured or refused by name; none is ignored."""

import dataclasses
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import vllm.config
from vllm.config.engram import EngramConfig
from vllm.engine.arg_utils import EngineArgs

from tests.platform import engine_arguments as arguments
from vllm_ironwood import refusals
from vllm_ironwood.errors import ConfigurationError
from vllm_ironwood.refused_configurations import REFUSALS

ROWS = {row.name: row for row in REFUSALS}
CASES = [
    *[(argument, row, asked) for argument, (row, asked) in arguments.REFUSED.items()],
    *[(str(asked), row, asked) for row, asked in arguments.REFUSED_VALUES],
]

# Objects that vLLM wants whole, under the name of their class.
CONFIGS = {
    "PoolerConfig": lambda: vllm.config.PoolerConfig(),
    "KVTransferConfig": lambda: vllm.config.KVTransferConfig(
        kv_connector="ExampleConnector", kv_role="kv_both"
    ),
    "ECTransferConfig": lambda: vllm.config.ECTransferConfig(
        ec_connector="ECExampleConnector", ec_role="ec_both"
    ),
    "KVEventsConfig": lambda: vllm.config.KVEventsConfig(enable_kv_cache_events=True),
    "EngramConfig": EngramConfig,
    "ProfilerConfig": lambda: vllm.config.ProfilerConfig(
        profiler="torch", torch_profiler_dir="/nowhere", torch_profiler_with_memory=True
    ),
}


def concrete(asked: dict[str, Any], model: str) -> dict[str, Any]:
    def value(given: Any) -> Any:
        if given == "MODEL":
            return model
        return CONFIGS[given]() if isinstance(given, str) and given in CONFIGS else given

    return {name: value(given) for name, given in asked.items()}


@pytest.mark.parametrize(("name", "row", "asked"), CASES, ids=[case[0] for case in CASES])
def test_unsupported_argument_is_refused_by_the_name_of_its_row(
    name, row, asked, build, tiny_checkpoint
):
    with pytest.raises(ConfigurationError) as refusal:
        build(**concrete(asked, str(tiny_checkpoint)))
    message = str(refusal.value)
    assert message.startswith(f"{row} is not supported (")
    assert message.endswith(ROWS[row].instead)
    assert "\n" not in message


@pytest.mark.parametrize("name", arguments.REFUSED_BY_VLLM)
def test_argument_that_vllm_refuses_stays_refused(name, build, tiny_checkpoint):
    asked = concrete({name: arguments.REFUSED_BY_VLLM[name]}, str(tiny_checkpoint))
    with pytest.raises(ValueError, match=r"not supported|requires|only|Unable|Unknown"):
        build(**asked)


@pytest.mark.parametrize("variable", ["VLLM_USE_V2_MODEL_RUNNER", "VLLM_BATCH_INVARIANT"])
def test_environment_variable_that_would_change_the_runner_is_refused(variable, build, monkeypatch):
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ConfigurationError, match=f"{variable}=1"):
        build()


def test_lora_updates_at_run_time_are_refused(build, monkeypatch):
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")
    with pytest.raises(ConfigurationError, match="LoRA is not supported"):
        build()


def test_installed_logits_processor_is_refused(build, monkeypatch):
    installed = EntryPoint("mine", "my_package:Processor", "vllm.logits_processors")
    monkeypatch.setattr(refusals, "entry_points", lambda group: [installed])
    with pytest.raises(ConfigurationError, match=r"logits processor .*\(my_package:Processor\)"):
        build()


def test_model_that_is_not_a_local_directory_is_refused(build):
    config = build()
    config.model_config.model = "someone/some-model"
    assert ROWS["A model that is not a local directory"].found(config) == "model=someone/some-model"


def test_every_row_has_a_case():
    asked = {row for _, row, _ in CASES}
    by_environment = {"vLLM's model runner V2", "vLLM's batch-invariant mode"}
    by_checkpoint = {"This architecture", "A model that is not a local directory"}
    assert asked | by_environment | by_checkpoint == set(ROWS)


def test_every_engine_argument_of_vllm_is_in_exactly_one_group():
    groups = [
        arguments.HONOURED,
        set(arguments.NO_EFFECT),
        arguments.MULTIMODAL,
        *arguments.ONLY_WITH.values(),
        set(arguments.REFUSED_BY_VLLM),
        set(arguments.REFUSED),
    ]
    grouped = [name for group in groups for name in group]
    assert sorted(grouped) == sorted(field.name for field in dataclasses.fields(EngineArgs))


@pytest.mark.parametrize("name", arguments.ONLY_WITH)
def test_arguments_that_depend_on_another_depend_on_a_refused_one(name):
    assert name in arguments.REFUSED or name in arguments.REFUSED_BY_VLLM


@pytest.mark.parametrize(
    "accepted",
    [
        {},
        {"enforce_eager": True},
        {"optimization_level": 3},
        {"performance_mode": "throughput"},
        {"dtype": "float32"},
        {"kv_cache_dtype": "bfloat16"},
        {"load_format": "safetensors"},
        {"enable_prefix_caching": False},
        {"enable_prefix_caching": False, "enable_chunked_prefill": False},
        {"async_scheduling": False},
        {"mamba_ssm_cache_dtype": "bfloat16"},
        {"mamba_block_size": 64, "block_size": 64},
        {"prefix_match_unit": 32, "block_size": 32},
        {"prefix_cache_retention_interval": None},
        {"scheduling_policy": "priority"},
        {"max_logprobs": 5},
        {"max_model_len": -1},
        {"language_model_only": True},
        {"reasoning_parser": "qwen3"},
    ],
    ids=str,
)
def test_supported_configuration_is_accepted(accepted, build):
    assert build(**accepted).parallel_config.worker_cls == "vllm_ironwood.worker.IronwoodWorker"
