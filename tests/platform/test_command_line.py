# SPDX-License-Identifier: Apache-2.0
"""What the platform adds to vLLM's command line: --device, an early look at the model."""

import os

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.common.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from vllm_ironwood.command_line import STREAMING_ERRORS
from vllm_ironwood.errors import ConfigurationError


@pytest.fixture(scope="module")
def serve_parser() -> FlexibleArgumentParser:
    return make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))


@pytest.mark.parametrize("device", ["auto", "tpu", "cpu"])
def test_device_reaches_every_process_through_the_environment(device, serve_parser, monkeypatch):
    monkeypatch.delenv("IRONWOOD_DEVICE")
    assert serve_parser.parse_args(["--device", device]).device == device
    assert os.environ["IRONWOOD_DEVICE"] == device


def test_without_the_option_the_environment_is_left_alone(serve_parser, monkeypatch):
    monkeypatch.setenv("IRONWOOD_DEVICE", "cpu")
    assert serve_parser.parse_args([]).device is None
    assert os.environ["IRONWOOD_DEVICE"] == "cpu"


def test_another_device_is_refused_by_the_parser(serve_parser, capsys):
    with pytest.raises(SystemExit) as ended:
        serve_parser.parse_args(["--device", "cuda"])
    assert ended.value.code == 2
    assert "argument --device: invalid choice: 'cuda'" in capsys.readouterr().err


def test_device_is_an_option_wherever_vllm_takes_engine_arguments(monkeypatch):
    monkeypatch.delenv("IRONWOOD_DEVICE")
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(prog="vllm run-batch"))
    assert parser.parse_args(["--device", "cpu"]).device == "cpu"


def test_bad_streams_are_answered_with_their_status(serve_parser):
    assert serve_parser.parse_args([]).middleware == [STREAMING_ERRORS]


def test_middleware_of_the_user_is_kept(serve_parser):
    mine = serve_parser.parse_args(["--middleware", "my.Middleware"]).middleware
    assert sorted(mine) == ["my.Middleware", STREAMING_ERRORS]


def test_a_good_model_passes_as_it_was_written(serve_parser, tiny_checkpoint, monkeypatch):
    monkeypatch.chdir(tiny_checkpoint.parent)
    for model in (str(tiny_checkpoint), f"./{tiny_checkpoint.name}", tiny_checkpoint.name):
        assert serve_parser.parse_args([model]).model_tag == model
        assert serve_parser.parse_args(["--model", model]).model == model


def test_the_name_of_a_model_on_the_hub_is_left_to_vllm(serve_parser):
    assert serve_parser.parse_args(["someone/some-model"]).model_tag == "someone/some-model"


@pytest.mark.parametrize("model", ["/no/such/model", "./nothing", "../nothing", "~/nothing"])
def test_a_path_that_is_not_there_is_refused_at_once(model, serve_parser):
    with pytest.raises(ConfigurationError, match="no such directory"):
        serve_parser.parse_args([model])
