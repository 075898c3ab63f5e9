# SPDX-License-Identifier: Apache-2.0
"""The settings of ``--additional-config``: known keys of the right type, nothing else."""

import dataclasses

import pytest

from vllm_ironwood.config import IronwoodConfig
from vllm_ironwood.errors import ConfigurationError


def test_no_settings_means_the_defaults():
    assert IronwoodConfig.from_additional_config({}) == IronwoodConfig()


def test_every_setting_can_be_given():
    given = {
        "device": "cpu",
        "forbid_recompilation": True,
        "cpu_cache_gib": 2,
        "state_slots": 7,
        "debug_fill_nan": True,
    }
    assert set(given) == {field.name for field in dataclasses.fields(IronwoodConfig)}
    assert dataclasses.asdict(IronwoodConfig.from_additional_config(given)) == given


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("device", "gpu"),
        ("device", None),
        ("forbid_recompilation", 1),
        ("forbid_recompilation", "true"),
        ("cpu_cache_gib", 0),
        ("cpu_cache_gib", True),
        ("cpu_cache_gib", "1"),
        ("cpu_cache_gib", float("nan")),
        ("cpu_cache_gib", float("inf")),
        ("state_slots", 0),
        ("state_slots", 2.0),
        ("state_slots", True),
        ("debug_fill_nan", None),
    ],
)
def test_wrong_value_is_refused_naming_the_key(key, value):
    with pytest.raises(ConfigurationError, match=f"additional_config: {key} must be "):
        IronwoodConfig.from_additional_config({key: value})


def test_unknown_key_is_refused_naming_the_known_ones():
    with pytest.raises(ConfigurationError, match=r"'cpu_cache_gb'; the keys are .*cpu_cache_gib"):
        IronwoodConfig.from_additional_config({"cpu_cache_gb": 1})


@pytest.mark.parametrize("settings", [None, [], "device=cpu"])
def test_settings_that_are_no_mapping_are_refused(settings):
    with pytest.raises(ConfigurationError, match="must be a mapping"):
        IronwoodConfig.from_additional_config(settings)


def test_description_shows_the_devices_and_every_setting():
    class Device:
        device_kind = "TPU7x"

    line = IronwoodConfig(state_slots=9).describe([Device(), Device()])
    assert line.startswith("vllm-ironwood runs on 2 x TPU7x with ")
    for field in dataclasses.fields(IronwoodConfig):
        assert f"{field.name}=" in line
    assert "state_slots=9" in line
    assert "\n" not in line
