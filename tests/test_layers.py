# SPDX-License-Identifier: Apache-2.0
"""Who may import whom: the contracts in pyproject.toml hold, and each of them bites."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


def lint_imports(directory: Path) -> subprocess.CompletedProcess[str]:
    """Run the contracts of `directory`/pyproject.toml on the packages beside it."""
    return subprocess.run(
        [LINT_IMPORTS, "--no-cache", "--no-logo"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_sources_keep_every_import_rule():
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    [
        ("csrc_pallas/x.py", "import torch", "csrc_pallas knows JAX only"),
        ("csrc_pallas/x.py", "from vllm.config import VllmConfig", "csrc_pallas knows JAX only"),
        ("csrc_pallas/x.py", "import vllm_ironwood.models", "csrc_pallas knows JAX only"),
        ("vllm_ironwood/models/x.py", "import vllm", "vLLM is known only"),
        ("vllm_ironwood/models/x.py", "def f():\n    import vllm.config", "vLLM is known only"),
        ("vllm_ironwood/checkpoints/x.py", "import vllm", "vLLM is known only"),
        ("vllm_ironwood/x.py", "import vllm", "vLLM is known only"),
        ("vllm_ironwood/models/x.py", "import torch", "torch is known only"),
        ("vllm_ironwood/models/x.py", "import vllm_ironwood.runner.buckets", "serving stands on"),
        ("vllm_ironwood/cache/x.py", "import vllm_ironwood.runner.buckets", "serving stands on"),
    ],
)
def test_a_forbidden_import_breaks_its_contract(tmp_path, module, statement, contract):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in ("csrc_pallas", "vllm_ironwood"):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    (tmp_path / module).write_text(statement + "\n")

    result = lint_imports(tmp_path)

    assert result.returncode == 1
    broken = [line for line in result.stdout.splitlines() if "BROKEN" in line]
    assert len(broken) == 1, result.stdout
    assert broken[0].startswith(contract)


@pytest.mark.parametrize("module", ["vllm_ironwood", "vllm_ironwood.cli", "vllm_ironwood.cli.main"])
def test_import_of_the_package_or_its_command_line_loads_nothing_heavy(module):
    program = f"import sys, {module}; print(*sorted({{'jax', 'torch', 'vllm'}} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.split() == []
