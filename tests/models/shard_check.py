# SPDX-License-Identifier: Apache-2.0
"""Loads a checkpoint onto four CPU devices and compares every shard with an unsharded load."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vllm_ironwood.models.qwen3_5_moe.config import ModelConfig
from vllm_ironwood.models.qwen3_5_moe.params import ParamSpec, param_specs
from vllm_ironwood.models.qwen3_5_moe.weights import load_params, read_hf_config

# Two ways over heads; experts over all four devices.
RULES = {"heads": "y", "kv_heads": "y", "gdn_heads": "y", "vocab": "y", "experts": ("x", "y")}


def main(directory: str) -> None:
    jax.config.update("jax_num_cpu_devices", 4)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))

    def place(spec: ParamSpec) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*(RULES.get(axis) for axis in spec.axes)))

    config = ModelConfig.from_hf(read_hf_config(directory))
    whole = load_params(config, directory, "float32", progress=False)
    for staging_bytes in (1, 1 << 30):
        params = load_params(
            config,
            directory,
            "float32",
            sharding=place,
            progress=False,
            staging_bytes=staging_bytes,
        )
        jax.tree.map(check, params, whole, param_specs(config, "float32"))


def check(array: jax.Array, whole: jax.Array, spec: ParamSpec) -> None:
    whole = np.asarray(whole)
    assert len(array.addressable_shards) == 4
    for shard in array.addressable_shards:
        index = list(shard.index)
        if spec.parts and spec.axes[-1] in RULES:
            # Half of each part, side by side.
            half = int(shard.index[-1].start > 0)
            starts = np.cumsum((0, *spec.parts[:-1]))
            index[-1] = np.concatenate(
                [
                    np.arange(start + half * part // 2, start + (half + 1) * part // 2)
                    for start, part in zip(starts, spec.parts)
                ]
            )
        np.testing.assert_array_equal(shard.data, whole[tuple(index)])
