# SPDX-License-Identifier: Apache-2.0
"""The platform class: what vLLM asks of the device it runs on.

vLLM imports this module while it imports its own configuration, so whatever needs that
configuration is imported inside the methods.
"""

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.logger import init_logger
from vllm.platforms.interface import Platform, PlatformEnum

from vllm_ironwood import block_sizes, command_line, devices
from vllm_ironwood.checkpoint_check import check_model
from vllm_ironwood.config import IronwoodConfig
from vllm_ironwood.errors import ConfigurationError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.utils.argparse_utils import FlexibleArgumentParser

logger = init_logger("vllm.ironwood.platform")

# Memory of one TPU7x device (half a chip). vLLM only derives default batch sizes from it.
TPU7X_DEVICE_BYTES = 96 * 2**30


class IronwoodPlatform(Platform):
    """JAX devices behind vLLM's scheduler: TPU7x, or the CPU for development.

    ``PlatformEnum.TPU`` is what makes vLLM leave ``DeviceConfig.device`` empty: no tensor is
    ever put on a torch device of ours.
    """

    _enum = PlatformEnum.TPU
    device_name = "tpu"
    device_type = "tpu"
    dispatch_key = "CPU"
    ray_device_key = ""
    dist_backend = "gloo"
    device_control_env_var = "TPU_VISIBLE_CHIPS"
    additional_env_vars: ClassVar[list[str]] = [devices.DEVICE_VARIABLE]

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """The first one is what ``--dtype auto`` makes of a float16 or float32 checkpoint."""
        return [torch.bfloat16, torch.float32]

    def is_sleep_mode_available(self) -> bool:
        """True, so that vLLM leaves sleep mode to the table of refusals."""
        return True

    # Called in every process.

    @classmethod
    def import_kernels(cls) -> None:
        """No torch kernels are used."""

    @classmethod
    def import_ir_kernels(cls) -> None:
        """No torch kernels are used."""

    @classmethod
    def inference_mode(cls) -> Any:
        return torch.inference_mode()

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """The worker selects JAX devices itself."""

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Random numbers come from keys of the request's seed and the engine's."""

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        return True

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        if dtype not in cls().supported_dtypes:
            raise ConfigurationError(f"{dtype} is not supported; use bfloat16 or float32")

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return devices.expected_device().upper()

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Bytes per device; 0 on the CPU, for which vLLM then takes its smallest defaults."""
        return TPU7X_DEVICE_BYTES if devices.expected_device() == "tpu" else 0

    @classmethod
    def get_attn_backend_cls(cls, selected_backend: Any, *args: Any, **kwargs: Any) -> str:
        raise NotImplementedError("attention is a JAX kernel here, not a vLLM attention backend")

    # Configuration, in the order of the calls.

    @classmethod
    def pre_register_and_update(cls, parser: "FlexibleArgumentParser | None" = None) -> None:
        if parser is not None:
            command_line.extend(parser)

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: "VllmConfig") -> None:
        """Turn off all that vLLM would compile with torch: there is no torch program."""
        from vllm.config.vllm import OptimizationLevel

        from vllm_ironwood import refusals
        from vllm_ironwood.refused_configurations import REFUSALS

        refusals.check(REFUSALS, vllm_config, before_defaults=True)
        vllm_config.optimization_level = OptimizationLevel.O0

    @classmethod
    def check_and_update_config(cls, vllm_config: "VllmConfig") -> None:
        """Refuse what is not supported, then fill in what this platform decides.

        Runs whenever vLLM builds a configuration, in any process: it is cheap and running
        it again changes nothing.

        Raises:
            ConfigurationError: one line that names what is refused and says what to do.
        """
        from vllm_ironwood import metrics, refusals
        from vllm_ironwood.refused_configurations import REFUSALS

        refusals.check(REFUSALS, vllm_config)
        config = IronwoodConfig.from_vllm_config(vllm_config)
        vllm_config.additional_config = {
            **vllm_config.additional_config,
            "device": devices.choose_device(config.device),
        }
        if vllm_config.model_config is not None:
            check_model(vllm_config.model_config)
        parallel = vllm_config.parallel_config
        parallel.worker_cls = refusals.WORKER_CLASS
        parallel.distributed_executor_backend = "uni"
        block_sizes.settle(vllm_config)
        metrics.watch(vllm_config)
        if "jax" in sys.modules:
            # JAX's threads do not survive a fork: the engine core would hang.
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: "VllmConfig") -> None:
        block_sizes.settle(vllm_config)

    # KV cache, in the engine core.

    @classmethod
    def register_custom_kv_cache_specs(cls, vllm_config: "VllmConfig") -> None:
        from vllm_ironwood.cache.state_manager import register_state_spec

        register_state_spec()

    @classmethod
    def get_kv_cache_config_builder_cls(cls, vllm_config: "VllmConfig") -> str:
        return "vllm_ironwood.cache.config_builder.IronwoodKVCacheConfigBuilder"

    # Requests, in the front end.

    @classmethod
    def validate_request(cls, processed_inputs: Any, params: Any) -> None:
        from vllm_ironwood import request_fields

        request_fields.check(processed_inputs, params)


def _pin_v1_request_data() -> None:
    """Make vLLM send what the runner reads.

    The scheduler describes a resumed request, and the front end allows request fields,
    according to the model runner it assumes: V2 where Triton is installed, else V1.
    """
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")


def _tolerate_no_accelerator() -> None:
    """Let vLLM's clean-up at shutdown empty the caches of a torch accelerator that is not there.

    torch raises otherwise, and vLLM asks every platform but its own CPU one.
    """
    if not torch.accelerator.is_available():
        torch.accelerator.empty_cache = lambda: None
        torch.accelerator.empty_host_cache = lambda: None


class _DeadEngineInOneLine(logging.Filter):
    """Takes the traceback off vLLM's report that the engine core has gone.

    When the server stops, its engine core may end before the task that waits for outputs is
    cancelled, which then logs that the engine is dead. The traceback shows where it waited,
    never why the engine ended: that the engine core logs itself.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if type(error).__name__ == "EngineDeadError":
            record.msg, record.args = "The engine core has ended.", ()
            record.exc_info = record.exc_text = None
        return True


_pin_v1_request_data()
_tolerate_no_accelerator()
logging.getLogger("vllm.v1.engine.async_llm").addFilter(_DeadEngineInOneLine())
