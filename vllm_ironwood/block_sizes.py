# SPDX-License-Identifier: Apache-2.0
"""How many tokens an attention page and a GDN snapshot cover."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig

DEFAULT_BLOCK_SIZE = 128
ALLOWED_BLOCK_SIZES = (16, 32, 64, 128, 256)


def settle(vllm_config: "VllmConfig") -> None:
    """Set the attention block and, with prefix caching, the GDN block.

    vLLM leaves 16 tokens where the user gave no ``--block-size``.

    With prefix caching a snapshot of the GDN state can be taken at each end of a block, and
    the two blocks must be equally long: vLLM's scheduler ends its chunks on multiples of the
    shortest block, so a state that belongs to a longer one could be caught in its middle.
    Without prefix caching a request has one state, in a block as long as the context.
    """
    cache = vllm_config.cache_config
    if not cache.user_specified_block_size:
        cache.block_size = DEFAULT_BLOCK_SIZE
    if vllm_config.model_config is None:
        return
    cache.mamba_block_size = (
        cache.block_size if cache.enable_prefix_caching else vllm_config.model_config.max_model_len
    )
