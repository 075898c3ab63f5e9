# SPDX-License-Identifier: Apache-2.0
import pkgutil
import subprocess
import sys

import csrc_pallas

FOREIGN = ["vllm", "vllm_ironwood", "torch", "transformers"]


def test_the_kernels_import_without_vllm_and_torch():
    modules = [m.name for m in pkgutil.walk_packages(csrc_pallas.__path__, "csrc_pallas.")]
    assert "csrc_pallas.gated_delta_net.api" in modules
    script = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print([name for name in {FOREIGN!r} if name in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert result.stdout.strip() == "[]"
