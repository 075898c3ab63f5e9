# SPDX-License-Identifier: Apache-2.0
"""A server that stops logs no traceback of its own engine's end; other faults keep theirs."""

import logging

import pytest
from vllm.v1.engine.exceptions import EngineDeadError

import vllm_ironwood.platform  # noqa: F401  the filter is set when the platform is imported


@pytest.fixture
def log(caplog):
    logger = logging.getLogger("vllm.v1.engine.async_llm")
    logger.addHandler(caplog.handler)
    yield caplog, logger
    logger.removeHandler(caplog.handler)


def report(logger: logging.Logger, error: Exception) -> None:
    try:
        raise error
    except Exception:
        logger.exception("AsyncLLM output_handler failed.")


def test_the_end_of_the_engine_core_is_one_line(log):
    caplog, logger = log
    report(logger, EngineDeadError())
    assert "The engine core has ended." in caplog.text
    assert "Traceback" not in caplog.text


def test_any_other_fault_keeps_its_traceback(log):
    caplog, logger = log
    report(logger, KeyError("lost"))
    assert "output_handler failed" in caplog.text
    assert "Traceback" in caplog.text
