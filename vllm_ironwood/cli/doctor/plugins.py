# SPDX-License-Identifier: Apache-2.0
"""Does vLLM find the plugin, and does it take it?"""

import importlib.metadata

from vllm_ironwood.cli.doctor.findings import Finding, Status
from vllm_ironwood.cli.doctor.probe import ProbeError, run_probe

SECTION = "plugin"
ENTRY_POINTS = (
    ("vllm.platform_plugins", "ironwood"),
    ("vllm.general_plugins", "ironwood_models"),
)
REINSTALL = "pip install --no-deps --force-reinstall vllm-ironwood"

LOAD_PROGRAM = """
import importlib.metadata, json
[point] = importlib.metadata.entry_points(group={group!r}, name={name!r})
print(json.dumps(callable(point.load())))
"""
PLATFORM_PROGRAM = """
import json
from vllm.platforms import current_platform
print(json.dumps(f"{type(current_platform).__module__}.{type(current_platform).__qualname__}"))
"""


def check_plugins() -> list[Finding]:
    """Each entry point: registered, loadable. Then: which platform vLLM activates."""
    findings = [check_entry_point(group, name) for group, name in ENTRY_POINTS]
    findings.append(check_active_platform())
    return findings


def check_entry_point(group: str, name: str) -> Finding:
    """One entry point of this package, by its group and name."""
    points = importlib.metadata.entry_points(group=group, name=name)
    if len(points) != 1:
        value = f"{len(points)} entry points {name!r}, not 1"
        return Finding(SECTION, group, value, Status.ERROR, REINSTALL)
    [point] = points
    try:
        run_probe(LOAD_PROGRAM.format(group=group, name=name))
    except ProbeError as error:
        value = f"{point.value} does not load: {error}"
        return Finding(
            SECTION, group, value, Status.ERROR, "see the software section; " + REINSTALL
        )
    return Finding(SECTION, group, f"{name} = {point.value}")


def check_active_platform() -> Finding:
    """The platform that `import vllm` ends up with, in this very environment."""
    try:
        platform = run_probe(PLATFORM_PROGRAM)
    except ProbeError as error:
        value = f"vLLM does not start: {error}"
        return Finding(SECTION, "active", value, Status.ERROR, "see the other sections")
    if not platform.startswith("vllm_ironwood."):
        remedy = "see the environment section, and uninstall other vLLM platform plugins"
        return Finding(SECTION, "active", f"{platform}, not ours", Status.ERROR, remedy)
    return Finding(SECTION, "active", platform)
