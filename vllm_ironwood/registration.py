# SPDX-License-Identifier: Apache-2.0
"""Entry point of ``vllm.general_plugins``: what vLLM is told about the models served here.

vLLM inspects the class of an architecture to learn what the model can do (does it generate,
does it keep recurrent state, does it take images), and never builds it: the model itself is
JAX (:mod:`vllm_ironwood.models`). So the classes here are shells. They are registered as
class objects, because the ``"module:Class"`` form is inspected in a subprocess that imports
vLLM again.
"""

import logging
from typing import Any, ClassVar, NoReturn

from torch import Tensor, nn
from vllm.logger import init_logger
from vllm.model_executor.models import ModelRegistry
from vllm.model_executor.models.interfaces import SupportsLoRA, SupportsPP

from vllm_ironwood.errors import install_excepthook
from vllm_ironwood.refusals import SUPPORTED_ARCHITECTURES

logger = init_logger("vllm.ironwood.registration")


class ModelShell(nn.Module, SupportsLoRA, SupportsPP):
    """The methods that make a class a text generator in vLLM's eyes; none can be called.

    LoRA and pipeline parallelism are claimed so that vLLM leaves them to the table of
    refusals, which says what to do instead.
    """

    def __init__(self, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        _not_a_torch_model()

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        _not_a_torch_model()

    def forward(
        self, input_ids: Tensor, positions: Tensor, intermediate_tensors: Any = None
    ) -> Tensor:
        _not_a_torch_model()

    def make_empty_intermediate_tensors(self, *args: Any) -> NoReturn:
        _not_a_torch_model()

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        _not_a_torch_model()


class Qwen35MoeShell(ModelShell):
    """Qwen 3.5 MoE: attention layers beside Gated DeltaNet layers with recurrent state.

    A checkpoint of the multimodal architecture is served as text only, so the shell of both
    architectures claims no image, video or audio input: vLLM then refuses such a request.
    """

    is_hybrid: ClassVar[bool] = True
    has_inner_state: ClassVar[bool] = True

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: Any) -> NoReturn:
        _not_a_torch_model()

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: Any) -> NoReturn:
        _not_a_torch_model()

    @classmethod
    def get_mamba_state_copy_func(cls) -> NoReturn:
        _not_a_torch_model()


class ForeignShell(ModelShell):
    """Stands for every architecture vLLM knows and this platform does not serve.

    vLLM's own classes need libraries of other platforms: inspecting one takes a subprocess
    of many seconds and may end in its traceback. With this shell the configuration is built
    and then refused by the name of its architecture.
    """

    is_pooling_model: ClassVar[bool] = True


def register_models() -> None:
    """Register the shells. vLLM calls it in every process, at times more than once."""
    install_excepthook()
    from vllm.platforms import current_platform

    from vllm_ironwood.platform import IronwoodPlatform

    if not isinstance(current_platform, IronwoodPlatform):
        logger.info("another platform is active: the models of vllm-ironwood stay unregistered")
        return
    for architecture in list(ModelRegistry.get_supported_archs()):
        ModelRegistry.register_model(architecture, ForeignShell)
    for architecture in SUPPORTED_ARCHITECTURES:
        ModelRegistry.register_model(architecture, Qwen35MoeShell)
    logging.getLogger("vllm.usage.usage_lib").addFilter(_concerns_this_platform)


def _concerns_this_platform(record: logging.LogRecord) -> bool:
    """False for the error that vLLM logs at each start: its usage statistics look for another
    TPU platform's package, which is not wanted here."""
    return record.msg != "Failed to collect TPU information"


def _not_a_torch_model() -> NoReturn:
    raise NotImplementedError(
        "this class only describes the model to vLLM; the model is in vllm_ironwood.models"
    )
