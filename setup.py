# SPDX-License-Identifier: Apache-2.0
"""Package metadata of vllm-ironwood. Versions come from requirements/pins.txt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def read_pins() -> dict[str, str]:
    """Lines of requirements/pins.txt by distribution name: {"jax": "jax==0.10.2", ...}."""
    lines = (ROOT / "requirements" / "pins.txt").read_text().splitlines()
    pins = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return {re.split(r"[<>=!~]", pin, maxsplit=1)[0]: pin for pin in pins}


PINS = read_pins()

setup(
    name="vllm-ironwood",
    version="0.1.0",
    description="vLLM platform plugin: Qwen 3.5 MoE on TPU7x (Ironwood) with JAX and Pallas",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(
        include=["vllm_ironwood", "vllm_ironwood.*", "csrc_pallas", "csrc_pallas.*"]
    ),
    package_data={"": ["*.json", "*.jinja"]},
    install_requires=[
        PINS["vllm"],
        PINS["torch"],
        PINS["jax"],
        "ml_dtypes>=0.5",
        "numpy>=2.0",
        "packaging>=24",
        "prometheus_client>=0.18",
        "rich>=13.8",
        "safetensors>=0.6.2",
        "tqdm>=4.66",
    ],
    extras_require={
        "cpu": [PINS["jaxlib"]],
        "tpu": [PINS["jax"].replace("jax", "jax[tpu]"), PINS["libtpu"]],
        "test": [PINS["pytest"], PINS["hypothesis"], PINS["transformers"]],
        "lint": [PINS["ruff"], PINS["import-linter"]],
    },
    entry_points={
        "vllm.platform_plugins": ["ironwood = vllm_ironwood:register"],
        "vllm.general_plugins": ["ironwood_models = vllm_ironwood.registration:register_models"],
        "console_scripts": ["ironwood = vllm_ironwood.cli:main"],
    },
)
