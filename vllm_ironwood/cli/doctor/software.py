# SPDX-License-Identifier: Apache-2.0
"""Versions of what the plugin stands on, against what its metadata asks for."""

import importlib.metadata
import platform
import sys
from collections.abc import Callable

from packaging.requirements import Requirement

from vllm_ironwood.cli.doctor.findings import Finding, Status
from vllm_ironwood.cli.doctor.probe import ProbeError, run_probe

SECTION = "software"
DISTRIBUTION = "vllm-ironwood"
SHOWN = ("vllm", "torch", "transformers", "jax", "jaxlib", "libtpu")
OPTIONAL = ("libtpu",)  # needed on a TPU only; the device section asks for it there

TORCH_PROGRAM = "import json, torch; print(json.dumps(torch.version.cuda))"


def check_software() -> list[Finding]:
    """Findings on Python and on every distribution in SHOWN."""
    wanted = wanted_requirements()
    findings = [check_python()]
    findings += [check_version(name, wanted.get(name), installed_version) for name in SHOWN]
    findings = [check_build(finding) for finding in findings]
    return findings


def wanted_requirements() -> dict[str, Requirement]:
    """What this package asks for, extras included, and for the rest what vLLM asks for."""
    requirements = {}
    for distribution in ("vllm", DISTRIBUTION):
        try:
            lines = importlib.metadata.requires(distribution) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, lines):
            if not requirement.extras:
                requirements[requirement.name] = requirement
    return requirements


def installed_version(name: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_python() -> Finding:
    """Python itself; pip has already refused one that is too old."""
    return Finding(SECTION, "python", f"{platform.python_version()}  {sys.executable}")


def check_version(
    name: str, wanted: Requirement | None, installed: Callable[[str], str | None]
) -> Finding:
    """Is `name` there, and is its version one that was asked for?"""
    version = installed(name)
    install = f'pip install "{name}{wanted.specifier if wanted else ""}"'
    if version is None:
        if name in OPTIONAL:
            return Finding(SECTION, name, "not installed (needed on a TPU only)")
        return Finding(SECTION, name, "not installed", Status.ERROR, install)
    if wanted is not None and not wanted.specifier.contains(version, prereleases=True):
        value = f"{version}, but {wanted.specifier} is needed"
        return Finding(SECTION, name, value, Status.ERROR, install)
    return Finding(SECTION, name, version)


def check_build(finding: Finding) -> Finding:
    """Add what was built to the finding on torch or vLLM: with CUDA they are merely too large."""
    if finding.status is not Status.OK:
        return finding
    if finding.name == "torch":
        return check_torch_build(finding)
    if finding.name == "vllm" and has_device_code("vllm"):
        return Finding(
            SECTION,
            "vllm",
            f"{finding.value} (built with device code that is never used)",
            Status.WARNING,
            "install vLLM for the empty target (VLLM_TARGET_DEVICE=empty, see README.md)",
        )
    return finding


def check_torch_build(finding: Finding) -> Finding:
    """Does torch import, and is it a CPU build?"""
    try:
        cuda = run_probe(TORCH_PROGRAM)
    except ProbeError as error:
        value = f"{finding.value} does not import: {error}"
        return Finding(SECTION, "torch", value, Status.ERROR, "install a CPU build of torch")
    if cuda is None:
        return Finding(SECTION, "torch", f"{finding.value} (CPU build)")
    return Finding(
        SECTION,
        "torch",
        f"{finding.value} (CUDA {cuda} build: several GB that are never used)",
        Status.WARNING,
        "install the CPU build of the same version of torch",
    )


def has_device_code(distribution: str) -> bool:
    """Does an installed distribution hold compiled kernels (vllm/_C*.so)?"""
    files = importlib.metadata.files(distribution) or []
    return any(file.name.startswith("_C") and file.suffix == ".so" for file in files)
