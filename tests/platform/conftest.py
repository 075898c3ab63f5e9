# SPDX-License-Identifier: Apache-2.0
"""A vLLM configuration built in this process, on a tiny random checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRONWOOD_DEVICE", "cpu")


@pytest.fixture
def build(tiny_checkpoint: Path) -> Callable[..., Any]:
    """``build(**engine arguments)`` -> the VllmConfig that vLLM makes of them."""
    from vllm.engine.arg_utils import EngineArgs

    def make(**arguments: Any) -> Any:
        return EngineArgs(**{"model": str(tiny_checkpoint), **arguments}).create_engine_config()

    return make
