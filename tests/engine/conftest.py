# SPDX-License-Identifier: Apache-2.0
"""Engine tests run the engine core in their own process, where they can look inside."""

import pytest


@pytest.fixture(autouse=True)
def engine_in_this_process(monkeypatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
