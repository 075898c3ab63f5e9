# SPDX-License-Identifier: Apache-2.0
"""Reading config.json: both layouts, older fields, and refusals that name the field."""

import re

import pytest
from transformers import Qwen3_5MoeConfig, Qwen3_5MoeTextConfig

from vllm_ironwood.models.qwen3_5_moe.config import ModelConfig

GDN, ATTENTION = "linear_attention", "full_attention"


@pytest.fixture
def flat() -> dict:
    """What transformers writes for its default text model (Qwen3.5-35B-A3B)."""
    return Qwen3_5MoeTextConfig().to_dict()


def test_a_flat_file_of_transformers_is_read(flat):
    config = ModelConfig.from_hf(flat)
    assert config == ModelConfig(
        vocab_size=248320,
        hidden_size=2048,
        num_layers=40,
        layer_types=(GDN, GDN, GDN, ATTENTION) * 10,
        num_attention_heads=16,
        num_kv_heads=2,
        head_dim=256,
        rotary_dim=64,
        rope_theta=10000.0,
        mrope_section=(11, 11, 10),
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_width=4,
        num_experts=256,
        num_experts_per_tok=8,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        max_position_embeddings=32768,
    )
    assert (config.num_gdn_layers, config.num_attention_layers) == (30, 10)
    assert config.conv_channels == 2 * 16 * 128 + 32 * 128


def test_a_nested_file_gives_the_same_model(flat):
    nested = Qwen3_5MoeConfig(text_config=flat).to_dict()
    assert ModelConfig.from_hf(nested) == ModelConfig.from_hf(flat)


def test_the_outer_field_says_whether_a_nested_model_ties_its_embeddings(flat):
    nested = Qwen3_5MoeConfig(text_config=flat).to_dict() | {"tie_word_embeddings": True}
    assert ModelConfig.from_hf(nested).tie_word_embeddings


def test_the_older_spelling_of_layers_and_rope_is_read(flat):
    del flat["layer_types"], flat["rope_parameters"]
    flat |= {
        "num_hidden_layers": 7,
        "full_attention_interval": 3,
        "rope_theta": 5000,
        "partial_rotary_factor": 0.5,
        "rope_scaling": {"type": "default", "mrope_section": [22, 21, 21]},
    }
    config = ModelConfig.from_hf(flat)
    assert config.layer_types == (GDN, GDN, ATTENTION, GDN, GDN, ATTENTION, GDN)
    assert (config.rope_theta, config.rotary_dim) == (5000.0, 128)
    assert config.mrope_section == (22, 21, 21)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"model_type": None}, "model_type is None"),
        ({"num_experts": None}, "num_experts is None"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"head_dim": 64.5}, "head_dim is 64.5"),
        ({"num_attention_heads": 15}, "num_attention_heads is 15"),
        ({"linear_num_value_heads": 24}, "linear_num_value_heads is 24"),
        ({"num_experts_per_tok": 257}, "num_experts_per_tok is 257"),
        ({"layer_types": [GDN] * 39}, "layer_types"),
        ({"layer_types": [GDN] * 39 + ["sliding_attention"]}, "layer_types[39] is 'sliding"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"attn_output_gate": False}, "attn_output_gate is False"),
        ({"norm_topk_prob": False}, "norm_topk_prob is False"),
        ({"mlp_only_layers": [3]}, "mlp_only_layers is [3]"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_type is 'yarn'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.1}}, "rotary_dim"),
        ({"rope_parameters": {"mrope_section": [11, 11]}}, "mrope_section"),
        ({"rope_parameters": {"mrope_interleaved": False}}, "mrope_interleaved is False"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_model_that_is_not_supported_is_refused_by_name(flat, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        ModelConfig.from_hf(flat | changes)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("field", ["vocab_size", "linear_conv_kernel_dim", "rms_norm_eps"])
def test_a_missing_field_is_named(flat, field):
    del flat[field]
    with pytest.raises(ValueError, match=f"the field {field} is missing"):
        ModelConfig.from_hf(flat)
