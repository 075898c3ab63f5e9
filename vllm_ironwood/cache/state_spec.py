# SPDX-License-Identifier: Apache-2.0
"""What vLLM is told about the recurrent state of a Gated DeltaNet layer."""

from dataclasses import dataclass

from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import MambaSpec


@dataclass(frozen=True, kw_only=True)
class GdnStateSpec(MambaSpec):
    """One GDN layer's state: a slot of a pool that is apart from the attention pages.

    vLLM's default makes the page of every group equally large, by padding or by inflating
    the attention block to the size of a state. Here states live in ``num_slots`` slots of
    their own, handed out by :class:`~vllm_ironwood.cache.state_manager.GdnStateManager`,
    so they take no share of the attention blocks.

    Attributes:
        num_slots: slots of the pool, the reserved null slot 0 included.
        owner: number of the worker whose device memory the slots are.
    """

    num_slots: int
    owner: int

    def max_memory_usage_bytes(self, vllm_config: VllmConfig) -> int:
        """Bytes of *attention* blocks that one request's states need: none."""
        return 0
