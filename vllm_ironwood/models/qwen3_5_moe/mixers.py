# SPDX-License-Identifier: Apache-2.0
"""The two kinds of token mixing: gated softmax attention and Gated DeltaNet (GDN)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from csrc_pallas.gated_delta_net.api import GdnSlots, gated_delta_net
from csrc_pallas.ragged_batch import RaggedBatch
from csrc_pallas.ragged_paged_attention.api import ragged_paged_attention
from vllm_ironwood.models.qwen3_5_moe.config import ModelConfig
from vllm_ironwood.models.qwen3_5_moe.layers import Rotary, entry, project, rms_norm, rotate
from vllm_ironwood.models.qwen3_5_moe.params import AttentionParams, GdnParams


class Caches(NamedTuple):
    """What outlives a step. Donate it: every layer updates its part in place.

    A attention layers, G GDN layers. Free pages and free slots may hold anything, NaN too.
    """

    pages: jax.Array  # [A, pages, Hkv, page_size, 2 * Dh] keys beside values
    conv_state: jax.Array  # [G, slots, W - 1, channels] last inputs of the convolution
    recurrent_state: jax.Array  # [G, slots, Hv, Dk, Dv]


class StepInputs(NamedTuple):
    """One step: new tokens of all requests on one axis. T rows, R requests, both padded."""

    token_ids: jax.Array  # int32 [T]; padding rows may hold anything
    batch: RaggedBatch  # which rows belong to which request
    block_tables: jax.Array  # int32 [R, P] pages of each request
    slots: GdnSlots  # state slots of each request


def attention(
    config: ModelConfig,
    params: AttentionParams,
    x: jax.Array,
    caches: Caches,
    inputs: StepInputs,
    angles: Rotary,
    layer: jax.Array | int,
) -> tuple[jax.Array, Caches]:
    """Softmax attention with an output gate; x and the result are [T, D].

    Queries and keys are normalised per head before they are rotated. Each head's output is scaled
    element by element with the sigmoid of its gate, then projected.
    """
    rows, head_dim = x.shape[0], config.head_dim
    query_gate = project(x, params.query_gate, layer).reshape(rows, -1, 2, head_dim)
    query, gate = query_gate[:, :, 0], query_gate[:, :, 1]
    key_value = project(x, params.key_value, layer).reshape(rows, 2, -1, head_dim)
    key, value = key_value[:, 0], key_value[:, 1]
    query = rms_norm(query, entry(params.query_norm, layer), config.rms_norm_eps)
    key = rms_norm(key, entry(params.key_norm, layer), config.rms_norm_eps)
    out, pages = ragged_paged_attention(
        rotate(query, angles),
        rotate(key, angles),
        value,
        caches.pages,
        inputs.block_tables,
        inputs.batch,
        layer,
        sm_scale=head_dim**-0.5,
    )
    gated = out.astype(jnp.float32) * jax.nn.sigmoid(gate.astype(jnp.float32))
    gated = gated.astype(x.dtype).reshape(rows, -1)
    return project(gated, params.output, layer), caches._replace(pages=pages)


def gdn(
    config: ModelConfig,
    params: GdnParams,
    x: jax.Array,
    caches: Caches,
    inputs: StepInputs,
    layer: jax.Array | int,
) -> tuple[jax.Array, Caches]:
    """Gated DeltaNet (Yang, Kautz and Hatamizadeh, arXiv 2412.06464); x and the result are [T, D].

    The kernel does what lies between the projections: convolution, gates, delta rule, gated norm.
    """
    beta, alpha = jnp.split(project(x, params.beta_alpha, layer), 2, axis=-1)
    out, conv_state, recurrent_state = gated_delta_net(
        project(x, params.qkv, layer),
        project(x, params.gate, layer),
        alpha,
        beta,
        params.kernel,
        caches.conv_state,
        caches.recurrent_state,
        inputs.batch,
        inputs.slots,
        layer,
        num_key_heads=config.linear_num_key_heads,
        rms_eps=config.rms_norm_eps,
    )
    caches = caches._replace(conv_state=conv_state, recurrent_state=recurrent_state)
    return project(out, params.output, layer), caches
