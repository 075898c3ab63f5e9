# SPDX-License-Identifier: Apache-2.0
"""The interpreter that compiles: the newest JAX and libtpu, in an environment of their own."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NEWEST = ROOT / ".venv-aot"
PACKAGES = ["jax", "libtpu", "numpy", "rich"]
OLDEST_PINS = ("jax", "jaxlib", "libtpu")
# libtpu asks a metadata server and looks for chips unless it is told what it compiles for.
COMPILE_ONLY = {
    "TPU_SKIP_MDS_QUERY": "1",
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "tpu7x-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def enter(oldest: bool) -> None:
    """Return inside the wanted environment; else make it and start this command again there.

    Args:
        oldest: the versions that the package pins (Python 3.11), instead of the newest.
    """
    directory = ROOT / ".venv-aot-oldest" if oldest else NEWEST
    if Path(sys.prefix).resolve() != directory.resolve():
        _make(directory, oldest)
        python = directory / "bin" / "python"
        os.execv(python, [str(python), *sys.argv])
    os.environ.update(COMPILE_ONLY)
    sys.path.insert(0, str(ROOT))


def versions() -> str:
    """For the reader of a table: what compiled it."""
    found = {name: importlib.metadata.version(name) for name in ("jax", "libtpu")}
    return f"Python {sys.version.split()[0]}, JAX {found['jax']}, libtpu {found['libtpu']}"


def _make(directory: Path, oldest: bool) -> None:
    done = directory / ".complete"
    if done.exists():
        return
    python = sys.executable if oldest else _newest_python()
    pins = (ROOT / "requirements" / "pins.txt").read_text()
    wanted = PACKAGES
    if oldest:
        named = [re.search(rf"^{name}==\S+", pins, re.M).group() for name in OLDEST_PINS]
        wanted = [*named, "numpy", "rich"]
    print(f"making {directory.name} with {python}: {' '.join(wanted)}", file=sys.stderr)
    shutil.rmtree(directory, ignore_errors=True)
    try:
        subprocess.run([python, "-m", "venv", str(directory)], check=True)
        pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *wanted], check=True)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"cannot make {directory.name}: {error}") from None
    done.touch()


def _newest_python() -> str:
    """A Python 3.12 or later: this one, one on the PATH, or one of pyenv's."""
    if sys.version_info >= (3, 12):
        return sys.executable
    candidates = [shutil.which(f"python3.{minor}") for minor in (14, 13, 12)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += [str(path) for path in sorted(pyenv.glob("3.1[2-9]*/bin/python"), reverse=True)]
    for candidate in filter(None, candidates):
        check = subprocess.run([candidate, "-c", "import venv"], capture_output=True)
        if check.returncode == 0:
            return candidate
    raise SystemExit("the newest JAX needs Python 3.12 or later; install one or pass --oldest")
