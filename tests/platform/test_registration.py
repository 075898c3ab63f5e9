# SPDX-License-Identifier: Apache-2.0
"""What vLLM learns about models from the general plugin."""

import logging
import sys

import pytest
from vllm.model_executor.models import ModelRegistry
from vllm.plugins import load_general_plugins

from vllm_ironwood import registration
from vllm_ironwood.refusals import SUPPORTED_ARCHITECTURES
from vllm_ironwood.registration import ForeignShell, Qwen35MoeShell, register_models


@pytest.fixture(autouse=True)
def plugins_loaded():
    """Registered anew: an override that another test asked for stays in vLLM's registry."""
    load_general_plugins()
    register_models()


def test_both_architectures_are_registered_and_no_other_is_served():
    known = ModelRegistry.get_supported_archs()
    served = {name for name in known if ModelRegistry.models[name].model_cls is Qwen35MoeShell}
    assert served == set(SUPPORTED_ARCHITECTURES)
    assert len(known) > len(served)
    for name in known - served:
        assert ModelRegistry.models[name].model_cls is ForeignShell


def test_shell_tells_vllm_what_the_model_is():
    info = ModelRegistry.models[SUPPORTED_ARCHITECTURES[0]].interfaces
    assert info.is_text_generation_model
    assert info.is_hybrid
    assert info.has_inner_state
    assert not info.supports_multimodal
    assert not info.is_attention_free


def test_shells_cannot_be_mistaken_for_models():
    with pytest.raises(NotImplementedError, match="only describes the model"):
        Qwen35MoeShell(vllm_config=None)


def test_registering_again_changes_nothing():
    before = dict(ModelRegistry.models)
    hook = sys.excepthook
    register_models()
    assert ModelRegistry.models.keys() == before.keys()
    assert sys.excepthook is hook


def test_under_another_platform_vllm_keeps_its_models(monkeypatch):
    import vllm.platforms

    registered = []
    monkeypatch.setattr(vllm.platforms, "_current_platform", object())
    monkeypatch.setattr(ModelRegistry, "register_model", lambda *args: registered.append(args))
    registration.register_models()
    assert registered == []


@pytest.mark.parametrize(
    ("message", "shown"), [("Failed to collect TPU information", False), ("Anything else", True)]
)
def test_missing_package_of_another_tpu_platform_is_no_error(message, shown):
    logger = logging.getLogger("vllm.usage.usage_lib")
    record = logger.makeRecord(logger.name, logging.ERROR, "usage_lib.py", 1, message, (), None)
    assert bool(logger.filter(record)) is shown
