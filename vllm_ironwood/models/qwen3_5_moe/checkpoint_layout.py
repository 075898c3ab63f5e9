# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint tensors make up which parameter, in the layouts that are published.

Names start with `model.` (the text model alone) or `model.language_model.` (nested beside a vision
tower, whose tensors are skipped, as are those of the multi-token-prediction layer). Experts are
stored fused, one tensor per layer, or one by one.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import jax

from csrc_pallas.gated_delta_net.api import GdnWeights
from vllm_ironwood.models.qwen3_5_moe.checkpoint_files import CheckpointError, CheckpointFiles
from vllm_ironwood.models.qwen3_5_moe.config import FULL_ATTENTION, LINEAR_ATTENTION, ModelConfig
from vllm_ironwood.models.qwen3_5_moe.params import AttentionParams, ExpertParams, GdnParams, Params

_SKIPPED_PREFIXES = ("model.visual.", "mtp.")
_FLAT_PREFIX = "model."
_NESTED_PREFIX = "model.language_model."


class Source(NamedTuple):
    """One stored tensor, seen as a block of a parameter.

    order[i] is the stored axis that becomes axis i of the block; stored axes left out have size 1.
    """

    name: str
    shape: tuple[int, ...]
    order: tuple[int, ...]


class Blocks(NamedTuple):
    """What a parameter is made of: for each index of its leading `depth` axes, the sources that
    lie side by side on its last axis."""

    depth: int
    sources: Mapping[tuple[int, ...], tuple[Source, ...]]


def parameter_blocks(config: ModelConfig, files: CheckpointFiles) -> Params:
    """A tree like Params that holds a Blocks in place of each array.

    Raises CheckpointError unless the checkpoint holds exactly the tensors of the model, each with
    the right shape (besides those of skipped parts).
    """
    blocks = _blocks(config, files.tensors)
    wanted = [
        source for leaf in leaves(blocks) for side in leaf.sources.values() for source in side
    ]
    for source in wanted:
        files.check_tensor(source.name, source.shape)
    names = {source.name for source in wanted}
    assert len(names) == len(wanted), "a tensor is used twice"
    for name, info in files.tensors.items():
        if name not in names and not name.startswith(_SKIPPED_PREFIXES):
            raise CheckpointError(
                f"{info.file}: tensor {name} is not part of the model that config.json describes; "
                f"{_why_unknown(config, name)}"
            )
    return blocks


def leaves(blocks: Params) -> list[Blocks]:
    """The Blocks of a tree, in the order of the parameters."""
    return jax.tree.leaves(blocks, is_leaf=lambda node: isinstance(node, Blocks))


def _why_unknown(config: ModelConfig, name: str) -> str:
    if name == "lm_head.weight" and config.tie_word_embeddings:
        return "set tie_word_embeddings to false to use it, or remove it"
    return "they do not belong together"


def _linear(name: str, outputs: int, inputs: int) -> Source:
    """A matrix stored [out, in], used as [in, out]."""
    return Source(f"{name}.weight", (outputs, inputs), (1, 0))


def _vector(name: str, size: int) -> Source:
    return Source(name, (size,), (0,))


def _blocks(config: ModelConfig, names: Collection[str]) -> Params:
    nested = any(name.startswith(_NESTED_PREFIX) for name in names)
    prefix = _NESTED_PREFIX if nested else _FLAT_PREFIX
    vocab, hidden = config.vocab_size, config.hidden_size
    layers = [f"{prefix}layers.{layer}." for layer in range(config.num_layers)]

    def norm(name: str) -> Blocks:
        return _stack(layers, lambda at: (_vector(f"{at}{name}.weight", hidden),))

    def whole(source: Source) -> Blocks:
        return Blocks(0, {(): (source,)})

    embedding = Source(f"{prefix}embed_tokens.weight", (vocab, hidden), (0, 1))
    return Params(
        embedding=whole(embedding),
        mixer_norm=norm("input_layernorm"),
        expert_norm=norm("post_attention_layernorm"),
        attention=_attention(config, list(_of_kind(config, layers, FULL_ATTENTION))),
        gdn=_gdn(config, list(_of_kind(config, layers, LINEAR_ATTENTION))),
        experts=_experts(config, layers, names),
        final_norm=whole(_vector(f"{prefix}norm.weight", hidden)),
        head=None if config.tie_word_embeddings else whole(_linear("lm_head", vocab, hidden)),
    )


def _of_kind(config: ModelConfig, layers: list[str], kind: str) -> Iterator[str]:
    return (at for at, layer_type in zip(layers, config.layer_types) if layer_type == kind)


def _stack(layers: list[str], sources) -> Blocks:
    """A parameter stacked over layers; `sources` maps a layer's name prefix to its sources."""
    return Blocks(1, {(layer,): sources(at) for layer, at in enumerate(layers)})


def _attention(config: ModelConfig, layers: list[str]) -> AttentionParams:
    hidden, head_dim = config.hidden_size, config.head_dim
    query, key = config.num_attention_heads * head_dim, config.num_kv_heads * head_dim

    def stack(*sources) -> Blocks:
        return _stack(layers, lambda at: tuple(source(f"{at}self_attn.") for source in sources))

    return AttentionParams(
        query_gate=stack(lambda at: _linear(f"{at}q_proj", 2 * query, hidden)),
        key_value=stack(
            lambda at: _linear(f"{at}k_proj", key, hidden),
            lambda at: _linear(f"{at}v_proj", key, hidden),
        ),
        query_norm=stack(lambda at: _vector(f"{at}q_norm.weight", head_dim)),
        key_norm=stack(lambda at: _vector(f"{at}k_norm.weight", head_dim)),
        output=stack(lambda at: _linear(f"{at}o_proj", hidden, query)),
    )


def _gdn(config: ModelConfig, layers: list[str]) -> GdnParams:
    hidden, heads = config.hidden_size, config.linear_num_value_heads
    channels, values = config.conv_channels, config.value_channels
    # Stored [channel, 1, tap] with the current token's tap last; used as [tap, channel].
    conv_shape = (channels, 1, config.linear_conv_width)

    def stack(*sources) -> Blocks:
        return _stack(layers, lambda at: tuple(source(f"{at}linear_attn.") for source in sources))

    return GdnParams(
        qkv=stack(lambda at: _linear(f"{at}in_proj_qkv", channels, hidden)),
        gate=stack(lambda at: _linear(f"{at}in_proj_z", values, hidden)),
        beta_alpha=stack(
            lambda at: _linear(f"{at}in_proj_b", heads, hidden),
            lambda at: _linear(f"{at}in_proj_a", heads, hidden),
        ),
        kernel=GdnWeights(
            conv=stack(lambda at: Source(f"{at}conv1d.weight", conv_shape, (2, 0))),
            a_log=stack(lambda at: _vector(f"{at}A_log", heads)),
            dt_bias=stack(lambda at: _vector(f"{at}dt_bias", heads)),
            norm=stack(lambda at: _vector(f"{at}norm.weight", config.linear_value_head_dim)),
        ),
        output=stack(lambda at: _linear(f"{at}out_proj", hidden, values)),
    )


def _experts(config: ModelConfig, layers: list[str], names: Collection[str]) -> ExpertParams:
    hidden, experts = config.hidden_size, config.num_experts
    shared = config.shared_expert_intermediate_size
    fused = any(name.endswith(".mlp.experts.gate_up_proj") for name in names)
    gate_up, down = (_fused_experts if fused else _separate_experts)(config, layers)

    def stack(*sources) -> Blocks:
        return _stack(layers, lambda at: tuple(source(f"{at}mlp.") for source in sources))

    return ExpertParams(
        router=stack(lambda at: _linear(f"{at}gate", experts, hidden)),
        gate_up=gate_up,
        down=down,
        shared_gate_up=stack(
            lambda at: _linear(f"{at}shared_expert.gate_proj", shared, hidden),
            lambda at: _linear(f"{at}shared_expert.up_proj", shared, hidden),
        ),
        shared_down=stack(lambda at: _linear(f"{at}shared_expert.down_proj", hidden, shared)),
        shared_gate=stack(lambda at: _linear(f"{at}shared_expert_gate", 1, hidden)),
    )


def _fused_experts(config: ModelConfig, layers: list[str]) -> tuple[Blocks, Blocks]:
    """Gate-up stored [expert, 2F, hidden] and down stored [expert, hidden, F]."""
    experts, hidden, width = config.num_experts, config.hidden_size, config.moe_intermediate_size
    gate_up, down = (experts, 2 * width, hidden), (experts, hidden, width)
    swapped = (0, 2, 1)
    return (
        _stack(layers, lambda at: (Source(f"{at}mlp.experts.gate_up_proj", gate_up, swapped),)),
        _stack(layers, lambda at: (Source(f"{at}mlp.experts.down_proj", down, swapped),)),
    )


def _separate_experts(config: ModelConfig, layers: list[str]) -> tuple[Blocks, Blocks]:
    """Three matrices for each expert, each stored [out, in]."""
    hidden, width = config.hidden_size, config.moe_intermediate_size
    gate_up, down = {}, {}
    for layer, prefix in enumerate(layers):
        for expert in range(config.num_experts):
            at = f"{prefix}mlp.experts.{expert}."
            gate_up[layer, expert] = (
                _linear(f"{at}gate_proj", width, hidden),
                _linear(f"{at}up_proj", width, hidden),
            )
            down[layer, expert] = (_linear(f"{at}down_proj", hidden, width),)
    return Blocks(2, gate_up), Blocks(2, down)
