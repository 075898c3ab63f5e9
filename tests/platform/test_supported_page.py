# SPDX-License-Identifier: Apache-2.0
"""docs/supported.md says what the code does."""

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from vllm_ironwood.block_sizes import ALLOWED_BLOCK_SIZES, DEFAULT_BLOCK_SIZE
from vllm_ironwood.config import IronwoodConfig

WRITER = Path(__file__).parents[2] / "docs" / "write_supported.py"


@pytest.fixture(scope="module")
def writer():
    spec = importlib.util.spec_from_file_location("write_supported", WRITER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page(writer) -> str:
    return writer.PAGE.read_text(encoding="utf-8")


def test_tables_are_those_of_the_code(writer, page):
    assert writer.write_into(page) == page, "run: python docs/write_supported.py"


def test_every_test_that_the_table_names_exists(writer):
    root = WRITER.parents[1]
    for field, test in writer.SHOWN_BY.items():
        path, name = test.split("::")
        assert f"def {name}(" in (root / path).read_text(encoding="utf-8"), field
    assert set(writer.SHOWN_BY) == {f for f in writer.HONOURED if not f.startswith("_")}


def test_a_page_without_a_marker_is_an_error(writer, page):
    with pytest.raises(ValueError, match="refused fields"):
        writer.write_into(page.replace("<!-- refused fields -->", ""))


def test_every_setting_is_described(page):
    for field in dataclasses.fields(IronwoodConfig):
        assert f"| `{field.name}` |" in page


def test_block_sizes_are_those_of_the_code(page):
    sizes = f"{', '.join(map(str, ALLOWED_BLOCK_SIZES[:-1]))} or {ALLOWED_BLOCK_SIZES[-1]}"
    assert f"An attention page holds {DEFAULT_BLOCK_SIZE} tokens" in page
    assert f"({sizes})" in page
