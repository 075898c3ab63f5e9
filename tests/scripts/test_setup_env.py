# SPDX-License-Identifier: Apache-2.0
"""The set-up of a fresh clone says in one line why it cannot go on, and what to do."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# What the script calls besides Python and pip.
TOOLS = ("awk", "bash", "cat", "cut", "df", "dirname", "grep", "mkdir", "rm", "sed", "sha256sum")
TOOLS += ("tac", "tail")


@pytest.fixture
def clone(tmp_path) -> Path:
    """A directory with all that the set-up reads, and no .venv."""
    directory = tmp_path / "clone"
    for part in ("scripts", "requirements"):
        shutil.copytree(ROOT / part, directory / part)
    shutil.copy(ROOT / "setup.py", directory)
    return directory


@pytest.fixture
def tools(tmp_path) -> Path:
    """A directory for PATH that holds TOOLS and no Python."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for tool in TOOLS:
        (directory / tool).symlink_to(shutil.which(tool))
    return directory


def write_program(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def set_up(clone: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: os.environ[name] for name in ("HOME", "PATH")}
    return subprocess.run(
        [clone / "scripts" / "setup_env.sh"],
        env={**environment, "XDG_CACHE_HOME": str(clone / "cache"), **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_fails_in_one_line(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 1
    [line] = [line for line in result.stderr.splitlines() if line]
    assert line.startswith("setup failed: ")
    for word in words:
        assert word in line


def test_no_python_at_all(clone, tools):
    result = set_up(clone, PATH=str(tools))
    assert_fails_in_one_line(result, "no Python 3.11", "PYTHON=")
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize("name", ["python3.11", "python3.13", "python3"])
def test_a_python_that_does_not_run_or_is_too_old_is_passed_over(clone, tools, name):
    write_program(tools / name, "#!/bin/bash\nexit 1\n")
    assert_fails_in_one_line(set_up(clone, PATH=str(tools)), "no Python 3.11")


@pytest.mark.parametrize(
    ("python", "words"),
    [("no-such-python", "is not a command"), ("/bin/false", "is no Python 3.11 to 3.14")],
)
def test_a_chosen_python_that_will_not_do(clone, python, words):
    assert_fails_in_one_line(set_up(clone, PYTHON=python), f"PYTHON={python}", words)


def test_a_full_disk(clone, tools):
    write_program(tools / "df", "#!/bin/bash\necho header\necho '/dev/x 9 9 2097152 99% /'\n")
    result = set_up(clone, PATH=str(tools), PYTHON=sys.executable)
    assert_fails_in_one_line(result, "2 GB free", "needs 5 GB")
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize(
    ("retries", "words"),
    [("0", "no package index is within reach"), ("1", "cannot reach a package index")],
)
def test_no_package_index_within_reach(clone, retries, words):
    result = set_up(
        clone,
        PYTHON=sys.executable,
        PIP_CONFIG_FILE=os.devnull,
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_RETRIES=retries,
    )
    assert "[1/6] creating .venv" in result.stdout
    assert_fails_in_one_line(result, words, "setup.log")
    assert not (clone / ".venv" / ".setup-stamp").exists()


def test_a_finished_environment_is_left_alone_until_what_it_is_made_of_changes(clone, tools):
    stamp = clone / ".venv" / ".setup-stamp"
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "bin" / "python").symlink_to(sys.executable)
    script = clone / "scripts" / "setup_env.sh"
    fingerprint = subprocess.run(
        [
            "bash",
            "-c",
            f"source <(sed '/^main$/d; s#^readonly ROOT=.*#ROOT={clone}#' {script})\nfingerprint",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    stamp.write_text(fingerprint)
    result = set_up(clone, PATH=str(tools))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")

    with (clone / "requirements" / "pins.txt").open("a") as pins:
        pins.write("# changed\n")
    assert_fails_in_one_line(set_up(clone, PATH=str(tools)), "no Python 3.11")
