# SPDX-License-Identifier: Apache-2.0
"""Two KV-cache groups: attention pages from vLLM's pool, GDN states from their own."""

from vllm.config import VllmConfig
from vllm.v1.core.kv_cache_planning import DefaultKVCacheConfigBuilder, may_override_num_blocks
from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
)

from vllm_ironwood.cache.state_spec import GdnStateSpec

ATTENTION_GROUP = 0
STATE_GROUP = 1


class IronwoodKVCacheConfigBuilder(DefaultKVCacheConfigBuilder):
    """Groups layers as (attention, GDN) and sizes each group's memory by itself."""

    def get_kv_cache_groups(
        self, vllm_config: VllmConfig, kv_cache_spec: dict[str, KVCacheSpec]
    ) -> list[KVCacheGroupSpec]:
        attention = {n: s for n, s in kv_cache_spec.items() if not isinstance(s, GdnStateSpec)}
        states = {n: s for n, s in kv_cache_spec.items() if isinstance(s, GdnStateSpec)}
        groups = []
        for layers in (attention, states):
            if len(set(layers.values())) != 1:
                raise ValueError(
                    "a cache group needs layers of exactly one kind, got "
                    f"{len(set(layers.values()))} kinds among {sorted(layers)}"
                )
            groups.append(KVCacheGroupSpec(list(layers), next(iter(layers.values()))))
        return groups

    def get_kv_cache_config_from_groups(
        self,
        vllm_config: VllmConfig,
        kv_cache_groups: list[KVCacheGroupSpec],
        num_blocks: int,
    ) -> KVCacheConfig:
        num_blocks = may_override_num_blocks(vllm_config, num_blocks)
        capacity = {
            ATTENTION_GROUP: num_blocks,
            STATE_GROUP: kv_cache_groups[STATE_GROUP].kv_cache_spec.num_slots,
        }
        return KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[
                _stacked_tensor(group, capacity[i]) for i, group in enumerate(kv_cache_groups)
            ],
            kv_cache_groups=kv_cache_groups,
            prefix_cache_retention_interval=(
                vllm_config.cache_config.prefix_cache_retention_interval
            ),
        )

    def _get_pool_bytes_per_block(
        self, vllm_config: VllmConfig, kv_cache_groups: list[KVCacheGroupSpec]
    ) -> int:
        group = kv_cache_groups[ATTENTION_GROUP]
        return len(group.layer_names) * group.kv_cache_spec.page_size_bytes


def _stacked_tensor(group: KVCacheGroupSpec, count: int) -> KVCacheTensor:
    """The group's layers stacked outermost: ``[layer, block or slot, ...]``."""
    page = group.kv_cache_spec.page_size_bytes
    return KVCacheTensor(
        size=len(group.layer_names) * count * page,
        layers=group.layer_names,
        layer_stride=count * page,
        block_stride=page,
    )
