# SPDX-License-Identifier: Apache-2.0
"""What the platform writes into vLLM's configuration, and that writing it again changes nothing."""

import copy
import dataclasses
import os
import subprocess
import sys

import pytest
import torch
from vllm.config.compilation import CompilationMode, CUDAGraphMode
from vllm.platforms import current_platform

from vllm_ironwood.errors import ConfigurationError
from vllm_ironwood.platform import IronwoodPlatform


def test_worker_executor_and_compilation_are_ours(build):
    config = build()
    assert config.parallel_config.worker_cls == "vllm_ironwood.worker.IronwoodWorker"
    assert config.parallel_config.distributed_executor_backend == "uni"
    assert config.compilation_config.mode == CompilationMode.NONE
    assert config.compilation_config.cudagraph_mode == CUDAGraphMode.NONE
    assert config.additional_config == {"device": "cpu"}


def test_defaults_of_the_scheduler_stay(build):
    scheduler = build().scheduler_config
    assert scheduler.async_scheduling
    assert scheduler.enable_chunked_prefill
    assert not scheduler.disable_hybrid_kv_cache_manager


@pytest.mark.parametrize("given", [None, 16, 32, 64, 128, 256])
def test_states_share_the_attention_block_with_prefix_caching(given, build):
    cache = build(block_size=given, enable_prefix_caching=True).cache_config
    assert cache.block_size == cache.mamba_block_size == (given or 128)
    assert cache.mamba_cache_mode == "align"


def test_one_state_per_request_without_prefix_caching(build):
    cache = build(enable_prefix_caching=False, max_model_len=1000).cache_config
    assert (cache.block_size, cache.mamba_block_size) == (128, 1000)
    assert cache.mamba_cache_mode == "none"


@pytest.mark.parametrize("caching", [True, False])
def test_checking_again_changes_nothing(caching, build):
    config = build(enable_prefix_caching=caching)
    before = copy.deepcopy(config)
    IronwoodPlatform.apply_config_platform_defaults(config)
    IronwoodPlatform.check_and_update_config(config)
    IronwoodPlatform.update_block_size_for_backend(config)
    for field in dataclasses.fields(config):
        if field.name not in ("quant_config", "model_config"):
            assert getattr(config, field.name) == getattr(before, field.name), field.name


def test_additional_config_of_the_caller_is_left_alone(build):
    mine = {"state_slots": 5}
    config = build(additional_config=mine)
    assert mine == {"state_slots": 5}
    assert config.additional_config == {"state_slots": 5, "device": "cpu"}


def test_unknown_setting_stops_the_start_naming_the_known_ones(build):
    with pytest.raises(ConfigurationError, match=r"unknown key 'turbo'.*cpu_cache_gib"):
        build(additional_config={"turbo": True})


@pytest.mark.parametrize("layout", ["flat", "nested"])
def test_both_layouts_are_served_as_text_only(layout, build, tmp_path):
    from vllm_ironwood.checkpoints import make_checkpoint

    make_checkpoint(tmp_path / "model", layout=layout)
    model = build(model=str(tmp_path / "model")).model_config
    assert model.is_hybrid
    assert model.has_inner_state
    assert model.runner_type == "generate"
    assert not model.supports_multimodal_inputs


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_a_float32_checkpoint_is_served_in_bfloat16(dtype, build):
    assert str(build(dtype=dtype).model_config.dtype) == "torch.bfloat16"


def test_v1_request_data_is_what_vllm_sends(build):
    assert not build().use_v2_model_runner


def test_generation_defaults_that_are_honoured_are_accepted(build):
    defaults = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}
    assert build(override_generation_config=defaults)


def test_platform_is_ours_and_answers_what_vllm_asks():
    assert isinstance(current_platform, IronwoodPlatform)
    assert current_platform.is_tpu()
    assert not current_platform.is_pin_memory_available()
    assert current_platform.support_hybrid_kv_cache()
    assert current_platform.get_device_name() == "CPU"
    assert current_platform.get_device_total_memory() == 0
    current_platform.set_device("cpu")
    with pytest.raises(ConfigurationError, match="use bfloat16 or float32"):
        current_platform.check_if_supports_dtype(torch.float16)


def test_clean_up_at_shutdown_does_not_miss_an_accelerator():
    torch.accelerator.empty_cache()


def test_front_end_imports_no_jax():
    """The engine core may be forked from the front end, and JAX does not survive a fork."""
    modules = ["checkpoint_check", "command_line", "config", "errors", "streaming_errors"]
    program = "import sys\n" + "".join(f"import vllm_ironwood.{module}\n" for module in modules)
    program += "sys.exit('jax' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_engine_core_is_spawned_once_jax_is_imported(build, monkeypatch):
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    monkeypatch.setitem(sys.modules, "jax", object())
    build()
    assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
