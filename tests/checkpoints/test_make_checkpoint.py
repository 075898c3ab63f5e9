# SPDX-License-Identifier: Apache-2.0
"""Random checkpoints: what is written, what is refused, and the command."""

import argparse
import json
import re

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import AutoConfig, Qwen3_5MoeConfig, Qwen3_5MoeTextConfig

from vllm_ironwood.checkpoints import add_parser, make_checkpoint
from vllm_ironwood.checkpoints.sizes import SIZES, text_fields
from vllm_ironwood.checkpoints.tensors import checkpoint_tensors
from vllm_ironwood.models.qwen3_5_moe.config import ModelConfig


def tensors(directory):
    return {k: v for file in directory.glob("*.safetensors") for k, v in load_file(file).items()}


def ironwood(*arguments) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers(required=True))
    parsed = parser.parse_args(["make-checkpoint", *map(str, arguments)])
    return parsed.run(parsed)


@pytest.mark.parametrize(
    ("layout", "kind"), [("flat", Qwen3_5MoeTextConfig), ("nested", Qwen3_5MoeConfig)]
)
@pytest.mark.parametrize("tied", [False, True])
def test_transformers_reads_the_config_as_we_do(tmp_path, layout, kind, tied):
    make_checkpoint(tmp_path, layout=layout, tie_word_embeddings=tied)
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert type(theirs) is kind
    ours = ModelConfig.from_hf(json.loads((tmp_path / "config.json").read_text()))
    assert ModelConfig.from_hf(theirs.to_dict()) == ours
    assert ours.tie_word_embeddings == tied


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        make_checkpoint(tmp_path / name, seed=seed)
    first, same, other = (tmp_path / n / "model.safetensors" for n in "abc")
    assert first.read_bytes() == same.read_bytes()
    for name, values in tensors(other.parent).items():
        assert not np.array_equal(values, tensors(first.parent)[name]), name


def test_no_tensor_holds_its_initial_value(tmp_path):
    """Norms, decays and biases are drawn, so that a model which ignores one is found out."""
    make_checkpoint(tmp_path)
    for name, values in tensors(tmp_path).items():
        assert np.isfinite(values).all(), name
        assert values.std() > 0.01, name


def test_bfloat16_holds_the_rounded_float32_values(tmp_path):
    make_checkpoint(tmp_path / "f32")
    make_checkpoint(tmp_path / "bf16", dtype="bfloat16")
    exact, rounded = tensors(tmp_path / "f32"), tensors(tmp_path / "bf16")
    assert exact.keys() == rounded.keys()
    for name, values in rounded.items():
        np.testing.assert_array_equal(values, exact[name].astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("shards", [2, 5, 57])
def test_shards_hold_every_tensor_once_and_are_of_about_equal_size(tmp_path, shards):
    make_checkpoint(tmp_path / "one")
    summary = make_checkpoint(tmp_path / "many", shards=shards)
    files = sorted((tmp_path / "many").glob("*.safetensors"))
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    held = [(name, file.name) for file in files for name in load_file(file)]
    assert len(files) == shards == summary.files
    assert dict(held) == index["weight_map"]
    assert len(held) == len(index["weight_map"])
    assert all(load_file(file) for file in files)
    whole = tensors(tmp_path / "one")
    assert whole.keys() == index["weight_map"].keys()
    total = sum(values.nbytes for values in whole.values())
    assert index["metadata"]["total_size"] == summary.nbytes == total
    largest = max(values.nbytes for values in whole.values())
    assert max(file.stat().st_size for file in files) < total / shards + largest + 10_000


def test_generation_ends_at_the_end_of_a_turn(tmp_path):
    make_checkpoint(tmp_path)
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    config = json.loads((tmp_path / "config.json").read_text())
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]
    ids = {token["content"]: token["id"] for token in vocabulary}
    assert generation["eos_token_id"] == [ids["<|im_end|>"], ids["<|endoftext|>"]]
    assert config["eos_token_id"] == ids["<|im_end|>"]


def test_a_directory_with_files_is_left_alone_unless_forced(tmp_path):
    make_checkpoint(tmp_path, seed=1, shards=2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(FileExistsError, match="--force"):
        make_checkpoint(tmp_path, seed=2)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    make_checkpoint(tmp_path, seed=2, force=True)
    assert [path.name for path in tmp_path.glob("*.safetensors*")] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": "huge"}, "size 'huge' is unknown; choose one of tiny, small, medium, large"),
        ({"layout": "round"}, "layout 'round'"),
        ({"dtype": "float64"}, "dtype 'float64'"),
        ({"experts": "none"}, "experts 'none'"),
        ({"shards": 0}, "shards is 0"),
        ({"shards": 10_000}, "shards is 10000"),
        ({"overrides": {"num_layers": 3}}, "'num_layers' cannot be set"),
        ({"overrides": {"vocab_size": 100}}, "vocab_size 100 is too small"),
        ({"overrides": {"num_attention_heads": 3}}, "num_attention_heads is 3"),
    ],
)
def test_a_choice_that_does_not_exist_is_refused_and_nothing_is_written(
    tmp_path, arguments, message
):
    with pytest.raises(ValueError, match=re.escape(message)):
        make_checkpoint(tmp_path / "model", **arguments)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("size", SIZES)
def test_the_table_of_sizes_says_how_many_parameters_there_are(size):
    shapes = [
        each.shape
        for each in checkpoint_tensors(
            text_fields(size, {}), layout="flat", experts="fused", tie_word_embeddings=False
        )
    ]
    count = sum(int(np.prod(shape)) for shape in shapes)
    stated, unit = SIZES[size].about.split(": ")[-1].split()[:2]
    assert float(stated) == pytest.approx(count / {"M": 1e6, "G": 1e9}[unit], rel=0.1)


def test_the_command_writes_a_checkpoint_and_says_what(tmp_path, capsys):
    target = tmp_path / "model"
    settings = ("--set", "num_hidden_layers=2", "--set", "full_attention_interval=2")
    code = ironwood(target, "--layout", "nested", "--seed", 7, "--shards", 2, *settings)
    assert code == 0
    assert f"{target}: 0." in capsys.readouterr().out
    config = ModelConfig.from_hf(json.loads((target / "config.json").read_text()))
    assert config.layer_types == ("linear_attention", "full_attention")


def test_the_command_refuses_in_one_line(tmp_path, capsys):
    (tmp_path / "precious").touch()
    assert ironwood(tmp_path) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert f"{tmp_path} is not empty" in captured.err


@pytest.mark.parametrize("setting", ["hidden_size", "hidden_size=", "hidden_size=many"])
def test_the_command_refuses_a_malformed_setting(tmp_path, capsys, setting):
    with pytest.raises(SystemExit):
        ironwood(tmp_path / "model", "--set", setting)
    assert "--set" in capsys.readouterr().err
