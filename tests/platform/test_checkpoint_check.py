# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that cannot be served is refused before anything heavy starts."""

import json
import os
import shutil
from pathlib import Path

import pytest

from vllm_ironwood.checkpoint_check import check_model_argument
from vllm_ironwood.checkpoints import make_checkpoint
from vllm_ironwood.errors import ConfigurationError


@pytest.fixture
def sharded(tmp_path) -> Path:
    directory = tmp_path / "sharded"
    make_checkpoint(directory, shards=3)
    return directory


@pytest.fixture
def copy(tiny_checkpoint, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "copy"))


def change_config(directory: Path, **fields) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_whole_checkpoints_are_accepted(sharded, build):
    assert check_model_argument(str(sharded)) == str(sharded)
    build(model=str(sharded))


@pytest.mark.parametrize("missing", [1, 9, 1000], ids="{} bytes missing".format)
def test_truncated_shard_is_named(missing, sharded, build):
    shard = sorted(sharded.glob("*.safetensors"))[1]
    os.truncate(shard, shard.stat().st_size - missing)
    with pytest.raises(ConfigurationError, match=rf"{shard.name}: not a whole safetensors file"):
        build(model=str(sharded))


def test_empty_shard_is_named(sharded, build):
    shard = sorted(sharded.glob("*.safetensors"))[-1]
    os.truncate(shard, 0)
    with pytest.raises(ConfigurationError, match=rf"{shard.name}: not a whole safetensors file"):
        build(model=str(sharded))


def test_shard_that_the_index_names_and_is_not_there_is_named(sharded, build):
    shard = sorted(sharded.glob("*.safetensors"))[0]
    shard.unlink()
    with pytest.raises(ConfigurationError, match=rf"{shard.name}: .*no such file"):
        build(model=str(sharded))


def test_directory_without_weights_is_refused(copy, build):
    (copy / "model.safetensors").unlink()
    with pytest.raises(ConfigurationError, match="convert the weights to safetensors"):
        build(model=str(copy))


def test_missing_configuration_is_named(copy):
    (copy / "config.json").unlink()
    with pytest.raises(ConfigurationError, match=r"config\.json: no such file"):
        check_model_argument(str(copy))


def test_malformed_configuration_is_named(copy):
    (copy / "config.json").write_text('{"model_type": ')
    with pytest.raises(ConfigurationError, match=r"config\.json: not readable as JSON"):
        check_model_argument(str(copy))


def test_file_in_place_of_a_directory_is_refused(copy):
    with pytest.raises(ConfigurationError, match="no such directory"):
        check_model_argument(str(copy / "model.safetensors"))


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        ("llama", "LlamaForCausalLM"),
        ("qwen3_5_text", "Qwen3_5ForCausalLM"),
        ("qwen3_moe", "Qwen3MoeForCausalLM"),
        ("unheard_of", "UnheardOfForCausalLM"),
    ],
)
def test_other_models_are_refused_by_the_name_of_their_architecture(model_type, architecture, copy):
    change_config(copy, model_type=model_type, architectures=[architecture])
    with pytest.raises(ConfigurationError, match=architecture):
        check_model_argument(str(copy))


@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "BertModel", "WhisperForConditionalGeneration"]
)
def test_other_models_are_refused_in_a_program_too(architecture, tmp_path, build):
    model_type = {"L": "llama", "B": "bert", "W": "whisper"}[architecture[0]]
    config = {"model_type": model_type, "architectures": [architecture], "vocab_size": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ConfigurationError, match=rf"architecture is not supported \({architecture}\)"
    ):
        build(model=str(tmp_path))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_experts", 0),
        ("num_experts_per_tok", 9),
        ("layer_types", ["linear_attention"] * 3 + ["sliding_attention"]),
        ("hidden_act", "gelu"),
    ],
)
def test_variant_that_is_not_implemented_is_refused_by_its_field(field, value, copy, build):
    change_config(copy, **{field: value})
    with pytest.raises(ConfigurationError, match=field):
        check_model_argument(str(copy))
    with pytest.raises((ConfigurationError, ValueError), match=field):
        build(model=str(copy))


def test_overridden_dimension_is_checked_too(build):
    with pytest.raises(ConfigurationError, match="num_experts_per_tok is 99"):
        build(hf_overrides={"num_experts_per_tok": 99})


def test_quantised_checkpoint_is_refused_by_name(copy, build):
    scheme = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    change_config(copy, quantization_config=scheme)
    with pytest.raises(ConfigurationError, match="Quantization is not supported"):
        build(model=str(copy))
