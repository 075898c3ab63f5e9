# SPDX-License-Identifier: Apache-2.0
"""Loading weights: every layout gives the same parameters, and every fault is named."""

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tqdm import tqdm
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeForConditionalGeneration

from vllm_ironwood.checkpoints import make_checkpoint
from vllm_ironwood.models.qwen3_5_moe.config import ModelConfig
from vllm_ironwood.models.qwen3_5_moe.params import param_specs
from vllm_ironwood.models.qwen3_5_moe.weights import (
    CheckpointError,
    fused_ranges,
    load_params,
    read_hf_config,
)

# Odd sizes: nothing divides anything.
FIELDS = {"num_hidden_layers": 5, "hidden_size": 37, "num_experts": 3, "vocab_size": 301}
LAYER_0 = "model.layers.0."


@pytest.fixture
def directory(tmp_path):
    """A sound flat checkpoint of one file, to be damaged."""
    make_checkpoint(tmp_path / "model", overrides=FIELDS)
    return tmp_path / "model"


@pytest.fixture
def sharded(tmp_path):
    """The same in three files with an index."""
    make_checkpoint(tmp_path / "model", overrides=FIELDS, shards=3)
    return tmp_path / "model"


def load(directory, dtype=jnp.float32, **arguments):
    config = ModelConfig.from_hf(read_hf_config(directory))
    return load_params(config, directory, dtype, **{"progress": False, **arguments})


def assert_same(params, expected):
    for (path, got), wanted in zip(
        jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(expected), strict=True
    ):
        assert got.dtype == wanted.dtype, path
        np.testing.assert_array_equal(got, wanted, err_msg=jax.tree_util.keystr(path))


def edit_tensors(directory, change):
    """Rewrite model.safetensors after change(tensors)."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def edit_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_parameters_have_the_specified_shapes_and_values(tmp_path, tied):
    make_checkpoint(tmp_path / "model", overrides=FIELDS, tie_word_embeddings=tied)
    params = load(tmp_path / "model")
    config = ModelConfig.from_hf(read_hf_config(tmp_path / "model"))
    specs = param_specs(config, jnp.float32)
    assert jax.tree.structure(params) == jax.tree.structure(specs)
    for got, spec in zip(jax.tree.leaves(params), jax.tree.leaves(specs)):
        assert (got.shape, got.dtype) == (spec.shape, spec.dtype)

    stored = load_file(tmp_path / "model" / "model.safetensors")
    linear, attention, mlp = LAYER_0 + "linear_attn.", "model.layers.3.self_attn.", LAYER_0 + "mlp."
    gate_up = [stored[f"{mlp}shared_expert.{name}_proj.weight"] for name in ("gate", "up")]
    for got, wanted in (
        (params.embedding, stored["model.embed_tokens.weight"]),
        (params.gdn.qkv[0], stored[linear + "in_proj_qkv.weight"].T),
        (params.gdn.kernel.conv[0], stored[linear + "conv1d.weight"][:, 0].T),
        (params.gdn.beta_alpha[0, :, 4:], stored[linear + "in_proj_a.weight"].T),
        (params.attention.key_value[0, :, 64:], stored[attention + "v_proj.weight"].T),
        (params.experts.gate_up[0, 2], stored[mlp + "experts.gate_up_proj"][2].T),
        (params.experts.down[0, 1], stored[mlp + "experts.down_proj"][1].T),
        (params.experts.shared_gate_up[0], np.concatenate(gate_up).T),
        (params.experts.shared_gate[0], stored[mlp + "shared_expert_gate.weight"].T),
    ):
        np.testing.assert_array_equal(got, wanted)
    if tied:
        assert params.head is None
    else:
        np.testing.assert_array_equal(params.head, stored["lm_head.weight"].T)


@pytest.mark.parametrize("layout", ["flat", "nested"])
@pytest.mark.parametrize("experts", ["fused", "separate"])
@pytest.mark.parametrize("shards", [1, 3])
def test_every_layout_gives_the_same_parameters(directory, tmp_path, layout, experts, shards):
    other = tmp_path / "other"
    make_checkpoint(other, layout=layout, experts=experts, shards=shards, overrides=FIELDS)
    assert_same(load(other), load(directory))


@pytest.mark.parametrize("staging_bytes", [1, 50_000])
def test_a_stack_assembled_from_groups_of_layers_is_the_same(directory, staging_bytes):
    assert_same(load(directory, staging_bytes=staging_bytes), load(directory))


@pytest.mark.parametrize(
    ("model", "layout"),
    [(Qwen3_5MoeForCausalLM, "flat"), (Qwen3_5MoeForConditionalGeneration, "nested")],
    ids=["flat", "nested"],
)
def test_what_transformers_saves_is_loaded(tmp_path, model, layout):
    """Also that transformers finds every tensor of ours where it looks for it."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    make_checkpoint(ours, layout=layout, overrides=FIELDS)
    loaded, report = model.from_pretrained(ours, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    loaded.save_pretrained(theirs, max_shard_size="500KB")
    assert len(list(theirs.glob("*.safetensors"))) > 1
    assert_same(load(theirs), load(ours))


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize("wanted", [jnp.float32, jnp.bfloat16])
def test_each_tensor_is_converted_to_the_wanted_dtype(directory, tmp_path, stored, wanted):
    make_checkpoint(tmp_path / "other", dtype=stored, overrides=FIELDS)
    params, exact = load(tmp_path / "other", wanted), load(directory)
    through = jnp.dtype(stored)
    expected = jax.tree.map(lambda x: x.astype(through).astype(wanted), exact)
    decay = {name: getattr(exact.gdn.kernel, name).astype(through) for name in ("a_log", "dt_bias")}
    decay = {name: value.astype(jnp.float32) for name, value in decay.items()}
    kernel = expected.gdn.kernel._replace(**decay)
    assert_same(params, expected._replace(gdn=expected.gdn._replace(kernel=kernel)))


def test_the_host_holds_one_group_of_layers_at_a_time(tmp_path):
    """Numpy's and safetensors' buffers are traced; what is on the device is not."""
    fields = {"num_hidden_layers": 16, "hidden_size": 128, "moe_intermediate_size": 128}
    make_checkpoint(tmp_path / "model", overrides=fields)
    params = load(tmp_path / "model", staging_bytes=1)  # compiles, so that no trace is seen below
    layer_bytes = max(leaf.nbytes // leaf.shape[0] for leaf in jax.tree.leaves(params.experts))
    tracemalloc.start()
    load(tmp_path / "model", staging_bytes=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert layer_bytes == 8 * 128 * 256 * 4
    assert peak < 3 * layer_bytes < params.experts.gate_up.nbytes / 4


def test_a_progress_bar_counts_every_byte(directory, capsys):
    params = load(directory, progress=True)
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    shown = capsys.readouterr().err
    assert "Loading weights: 100%" in shown
    total = tqdm.format_sizeof(total)
    assert f"{total}/{total}" in shown
    load(directory, progress=False)
    assert capsys.readouterr().err == ""


def remove(name):
    return lambda tensors: tensors.pop(name)


def set_to(name, change):
    return lambda tensors: tensors.update({name: change(tensors.get(name))})


@pytest.mark.parametrize(
    ("damage", "fragments"),
    [
        (remove(LAYER_0 + "mlp.gate.weight"), [LAYER_0 + "mlp.gate.weight is missing"]),
        (remove("model.norm.weight"), ["model.norm.weight is missing"]),
        (remove("lm_head.weight"), ["lm_head.weight is missing"]),
        (
            set_to("model.layers.5.mlp.gate.weight", lambda _: np.zeros((3, 37), np.float32)),
            ["model.safetensors: tensor model.layers.5.mlp.gate.weight is not part of the model"],
        ),
        (
            set_to(LAYER_0 + "mlp.experts.0.up_proj.weight", lambda _: np.zeros(2, np.float32)),
            ["mlp.experts.0.up_proj.weight is not part of the model"],
        ),
        (
            set_to(LAYER_0 + "linear_attn.A_log", lambda x: x[:-1].copy()),
            ["A_log has shape [3]", "asks for [4]"],
        ),
        (
            set_to("lm_head.weight", lambda x: x.T.copy()),
            ["lm_head.weight has shape [37, 301]", "asks for [301, 37]"],
        ),
        (
            set_to("model.norm.weight", lambda x: x.astype(np.int8)),
            ["model.norm.weight has dtype I8", "F32, BF16, F16"],
        ),
        (
            set_to("model.norm.weight_scale_inv", lambda _: np.zeros(1, np.float32)),
            ["model.norm.weight_scale_inv is not part"],
        ),
    ],
    ids=lambda value: value[0].split(" ")[-1] if isinstance(value, list) else "",
)
def test_a_wrong_tensor_is_named(directory, damage, fragments):
    edit_tensors(directory, damage)
    assert_refused(directory, *fragments, str(directory))


def assert_refused(directory, *fragments):
    with pytest.raises(CheckpointError) as refusal:
        load(directory)
    for fragment in fragments:
        assert fragment in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("size", [0, 5, 1000, -1], ids=["empty", "header", "tensors", "last byte"])
def test_a_truncated_file_is_named(directory, size):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert_refused(directory, str(path), "truncated")


def test_an_index_that_points_to_no_file_is_named(sharded):
    (sharded / "model-00002-of-00003.safetensors").unlink()
    assert_refused(sharded, "model-00002-of-00003.safetensors", "no such file")


def test_a_tensor_in_two_files_is_named(sharded):
    first, second = sorted(sharded.glob("*.safetensors"))[:2]
    name = "model.embed_tokens.weight"
    save_file(load_file(second) | {name: load_file(first)[name]}, second)
    assert_refused(sharded, str(second), name, f"also in {first.name}")


def test_two_files_without_index_may_not_overlap(directory):
    tensors = load_file(directory / "model.safetensors")
    save_file({"lm_head.weight": tensors["lm_head.weight"]}, directory / "more.safetensors")
    assert_refused(directory, "more.safetensors", "lm_head.weight", "also in model.safetensors")


def test_an_index_and_files_that_disagree_are_named(sharded):
    index = sharded / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    edit_json(index, weight_map=weight_map | {"lm_head.weight": min(weight_map.values())})
    assert_refused(sharded, "lm_head.weight is not in it", min(weight_map.values()))
    del weight_map["lm_head.weight"]
    edit_json(index, weight_map=weight_map)
    assert_refused(sharded, "lm_head.weight is not listed in model.safetensors.index.json")


def test_two_checkpoints_in_one_directory_are_refused(sharded):
    save_file({"x": np.zeros(1, np.float32)}, sharded / "model.safetensors")
    assert_refused(sharded, "two checkpoints in this directory", "model.safetensors")


@pytest.mark.parametrize("content", ["", "{", "[1]", "{}"])
def test_a_malformed_index_is_named(sharded, content):
    (sharded / "model.safetensors.index.json").write_text(content)
    assert_refused(sharded, "model.safetensors.index.json")


def test_a_directory_without_weights_or_config_is_named(directory, tmp_path):
    (directory / "model.safetensors").unlink()
    assert_refused(directory, str(directory), "no *.safetensors file")
    (directory / "config.json").unlink()
    assert_refused(directory, "config.json", "no such file")
    assert_refused(tmp_path / "nowhere", "no such directory")


def test_a_foreign_architecture_is_named(directory):
    config = ModelConfig.from_hf(read_hf_config(directory))
    edit_json(directory / "config.json", model_type="llama", architectures=["LlamaForCausalLM"])
    with pytest.raises(CheckpointError, match=r"LlamaForCausalLM.*not a Qwen 3\.5 MoE"):
        load_params(config, directory, jnp.float32, progress=False)


def test_a_quantised_checkpoint_is_refused_by_its_method(directory):
    edit_json(directory / "config.json", quantization_config={"quant_method": "fp8"})
    assert_refused(directory, "quantization_config (fp8) is not supported")


def test_a_head_beside_a_tied_embedding_is_refused(directory):
    edit_json(directory / "config.json", tie_word_embeddings=True)
    assert_refused(directory, "lm_head.weight", "tie_word_embeddings")


@pytest.mark.parametrize("shards", [1, 2, 4])
@pytest.mark.parametrize("parts", [(8,), (4, 4, 12), (4, 8)])
def test_a_sharded_fused_axis_holds_each_shards_share_of_every_part(shards, parts):
    columns = np.arange(sum(parts))
    starts = np.cumsum((0, *parts[:-1]))
    order = np.concatenate(
        [
            columns[start : start + part].reshape(shards, -1)[shard]
            for shard in range(shards)
            for start, part in zip(starts, parts)
        ]
    )
    for low in range(len(columns)):
        for high in range(low, len(columns) + 1):
            ranges = fused_ranges(parts, shards, low, high)
            got = [c for start, stop in ranges for c in range(start, stop)]
            assert got == order[low:high].tolist()


def test_parts_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=r"3 ways.*\(6, 4\)"):
        fused_ranges((6, 4), 3, 0, 10)


def test_each_device_gets_its_own_heads_and_experts(tmp_path):
    """On four devices, in a process of their own."""
    make_checkpoint(tmp_path / "model", overrides={"num_attention_heads": 4, "num_experts": 8})
    code = f"from tests.models import shard_check; shard_check.main({str(tmp_path / 'model')!r})"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
