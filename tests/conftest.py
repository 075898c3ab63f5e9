# SPDX-License-Identifier: Apache-2.0
"""Settings that every test shares: no network, no accelerator, no telemetry."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
