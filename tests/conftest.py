# SPDX-License-Identifier: Apache-2.0
"""Settings that every test shares: no network, no accelerator, no telemetry."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def demo_checkpoint() -> Path:
    return ROOT / "examples" / "demo_checkpoint"


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory) -> Path:
    """A random model of four layers: three GDN and one attention."""
    from vllm_ironwood.checkpoints import make_checkpoint

    directory = tmp_path_factory.mktemp("tiny") / "model"
    make_checkpoint(directory, size="tiny", seed=1)
    return directory
