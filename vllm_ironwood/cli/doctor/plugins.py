# SPDX-License-Identifier: Apache-2.0
"""Does vLLM find the plugin, and does it take it?"""

import importlib.metadata
from collections.abc import Mapping

from vllm_ironwood.cli.doctor.findings import Finding, Status
from vllm_ironwood.cli.doctor.probe import ProbeError, run_probe

SECTION = "plugin"
ENTRY_POINTS = (
    ("vllm.platform_plugins", "ironwood"),
    ("vllm.general_plugins", "ironwood_models"),
)
REINSTALL = "pip install --no-deps --force-reinstall vllm-ironwood"

# One process for all, since each answer takes an import of vLLM.
PROGRAM = """
import importlib.metadata, json
answer = {}
for group, name in ENTRY_POINTS:
    try:
        [point] = importlib.metadata.entry_points(group=group, name=name)
        point.load()
    except Exception as error:
        answer[name] = f"{type(error).__name__}: {error}"
try:
    from vllm.platforms import current_platform
    answer["platform"] = f"{type(current_platform).__module__}.{type(current_platform).__name__}"
except Exception as error:
    answer["failure"] = f"{type(error).__name__}: {error}"
print(json.dumps(answer))
"""


def check_plugins() -> list[Finding]:
    """Each entry point: registered, loadable. Then: which platform vLLM activates."""
    try:
        answer = run_probe(f"ENTRY_POINTS = {ENTRY_POINTS!r}\n{PROGRAM}")
    except ProbeError as error:
        answer = {"failure": str(error)}
    findings = [check_entry_point(group, name, answer.get(name)) for group, name in ENTRY_POINTS]
    return [*findings, check_active_platform(answer)]


def check_entry_point(group: str, name: str, failure: str | None) -> Finding:
    """One entry point of this package; `failure` says why it did not load, if it did not."""
    points = importlib.metadata.entry_points(group=group, name=name)
    if len(points) != 1:
        value = f"{len(points)} entry points {name!r}, not 1"
        return Finding(SECTION, group, value, Status.ERROR, REINSTALL)
    [point] = points
    if failure is not None:
        value = f"{point.value} does not load: {failure}"
        return Finding(SECTION, group, value, Status.ERROR, REINSTALL)
    return Finding(SECTION, group, f"{name} = {point.value}")


def check_active_platform(answer: Mapping[str, str]) -> Finding:
    """The platform that `import vllm` ends up with, in this very environment."""
    if "failure" in answer:
        value = f"vLLM does not start: {answer['failure']}"
        return Finding(SECTION, "active", value, Status.ERROR, "see the other sections")
    platform = answer["platform"]
    if not platform.startswith("vllm_ironwood."):
        remedy = "see the environment section, and uninstall other vLLM platform plugins"
        return Finding(SECTION, "active", f"{platform}, not ours", Status.ERROR, remedy)
    return Finding(SECTION, "active", platform)
