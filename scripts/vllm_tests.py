# SPDX-License-Identifier: Apache-2.0
"""Run vLLM's own tests, from its source release, on this plugin with the demo checkpoint.

    python scripts/vllm_tests.py                   # all files of vllm_tests.toml
    python scripts/vllm_tests.py --only test_chat  # those whose path contains this
    python scripts/vllm_tests.py --report          # write docs/vllm_tests.md from kept results

The source release of the pinned version is downloaded with pip, or given with --sdist; its tests
are unpacked into a cache directory, not into this repository. A Hugging Face cache is made there
in which every model name of these tests leads to examples/demo_checkpoint, so no test is edited.
Exits with 1 when a test failed that vllm_tests.toml does not explain, or passed although it says
that it cannot, or when results are missing.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import vllm_tests_report
from vllm_tests_plugin import VARIABLE

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINT = ROOT / "examples" / "demo_checkpoint"
PLAN = Path(__file__).with_suffix(".toml")
PAGE = ROOT / "docs" / "vllm_tests.md"
CACHE = Path.home() / ".cache" / "vllm-ironwood" / "vllm-tests"
REVISION = "0" * 40  # of a model in the made-up Hugging Face cache
STOP_SECONDS = 30


class VllmTestsError(RuntimeError):
    """What is wrong and what to do, in one line."""


@dataclass(frozen=True)
class TestFile:
    """A file under vLLM's tests/; patterns of test names -> why they are not run, or fail."""

    __test__ = False

    path: str
    deselect: Mapping[str, str] = field(default_factory=dict)
    fails: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    files: tuple[TestFile, ...]
    not_run: Mapping[str, str]  # path or pattern of paths -> reason
    models: tuple[str, ...]
    packages: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """Raises VllmTestsError when a reason is empty or a file is listed twice."""
        table = tomllib.loads(path.read_text())
        files = tuple(TestFile(**entry) for entry in table["file"])
        paths = [file.path for file in files]
        twice = sorted(
            {p for p in paths if paths.count(p) > 1} | set(paths) & set(table["not_run"])
        )
        if twice:
            raise VllmTestsError(f"{path.name} lists {twice[0]} twice; keep one entry")
        reasons = [table["not_run"], *(f.deselect for f in files), *(f.fails for f in files)]
        for name, reason in (pair for mapping in reasons for pair in mapping.items()):
            if not reason.strip():
                raise VllmTestsError(f"{path.name} gives no reason for {name}; say why it cannot")
        return cls(files, table["not_run"], tuple(table["models"]), tuple(table["packages"]))

    def choose(self, only: Sequence[str]) -> tuple[TestFile, ...]:
        """The files whose path contains one of the words; all of them without a word."""
        chosen = tuple(f for f in self.files if not only or any(word in f.path for word in only))
        if not chosen:
            raise VllmTestsError(
                f"no file of the plan contains {' or '.join(only)}; see {PLAN.name}"
            )
        return chosen


def download(version: str, directory: Path) -> Path:
    """The source release as pip downloads it.

    Raises VllmTestsError when pip cannot.
    """
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", f"vllm=={version}", "--no-deps"]
    command += ["--no-binary", "vllm", "--no-build-isolation", "--dest", str(directory)]
    # Only the archive is wanted: pip then fails on building metadata, for which it has no tools.
    subprocess.run(command, check=False, env={**os.environ, "VLLM_TARGET_DEVICE": "empty"})
    archives = sorted(directory.glob("vllm-*.tar.gz"))
    if not archives:
        raise VllmTestsError(
            f"pip downloaded no source release of vllm {version}; download it and give --sdist"
        )
    return archives[-1]


def unpack(sdist: Path, directory: Path) -> None:
    """Write tests/ of the source release into the directory.

    Raises VllmTestsError when the archive has none.
    """
    with tarfile.open(sdist) as archive:
        members = []
        for member in archive:
            name = member.name.partition("/")[2]
            if name.startswith("tests/"):
                members.append(member.replace(name=name, deep=False))
        if not members:
            raise VllmTestsError(f"{sdist} holds no tests/; give vLLM's source release")
        archive.extractall(directory, members, filter="data")


def make_hub(directory: Path, models: Iterable[str], checkpoint: Path) -> None:
    """A Hugging Face cache in which each model's files are links to the checkpoint's."""
    for model in models:
        root = directory / f"models--{model.replace('/', '--')}"
        snapshot = root / "snapshots" / REVISION
        snapshot.mkdir(parents=True, exist_ok=True)
        (root / "refs").mkdir(exist_ok=True)
        (root / "refs" / "main").write_text(REVISION)
        for file in checkpoint.iterdir():
            link = snapshot / file.name
            link.unlink(missing_ok=True)
            link.symlink_to(file)


def install(packages: Sequence[str], directory: Path) -> None:
    """Put what the tests import beside the environment, which stays as it is."""
    if not directory.is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*command, "--target", str(directory), *packages], check=True)


def results_file(cache: Path, path: str) -> Path:
    return cache / "results" / (path.replace("/", "--") + ".jsonl")


def run_file(file: TestFile, cache: Path, timeout: float) -> None:
    """Run one file with pytest in a session of its own; outcomes go to its results file."""
    results = results_file(cache, file.path)
    results.parent.mkdir(parents=True, exist_ok=True)
    results.unlink(missing_ok=True)
    order = results.with_suffix(".order")
    order.write_text(json.dumps({"results": str(results), "deselect": dict(file.deselect)}))
    path = [cache, Path(__file__).parent, cache / "site", os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        VARIABLE: str(order),
        "PYTHONPATH": os.pathsep.join(str(p) for p in path if str(p)),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HF_HUB_CACHE": str(cache / "hub"),
        "HF_HUB_OFFLINE": "1",
        "IRONWOOD_DEVICE": "cpu",
        "JAX_PLATFORMS": "cpu",
        "VLLM_NO_USAGE_STATS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-p", "vllm_tests_plugin", "-p", "no:cacheprovider"]
    command += ["-p", "pytest_asyncio", "--rootdir", str(cache), f"tests/{file.path}"]
    print(f"{file.path} ...", flush=True)
    log = results.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=cache,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            print(f"  stopped after {timeout:.0f} s", flush=True)
            # The handler of the tests' own servers stops those, which have sessions of their own.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not results.exists():
        print(f"  pytest collected nothing; read {log}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sdist", type=Path, help="the source release, if you have it")
    parser.add_argument("--cache", type=Path, default=CACHE, help="default: %(default)s")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="some of the files")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one file")
    parser.add_argument("--report", action="store_true", help="run nothing, write the page")
    options = parser.parse_args(argv)
    try:
        plan = Plan.read(PLAN)
        version = metadata.version("vllm")
        cache = options.cache / version
        if not options.report:
            chosen = plan.choose(options.only)
            if not (cache / "tests").is_dir():
                unpack(options.sdist or download(version, cache / "sdist"), cache)
            install(plan.packages, cache / "site")
            make_hub(cache / "hub", plan.models, CHECKPOINT)
            for file in chosen:
                run_file(file, cache, options.timeout)
                print("  " + vllm_tests_report.summary(file, results_file(cache, file.path)))
        pairs = [(file, results_file(cache, file.path)) for file in plan.files]
        page, wrong = vllm_tests_report.write(version, pairs, plan.not_run)
        PAGE.write_text(page)
    except VllmTestsError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join([*wrong, f"{PAGE.relative_to(ROOT)} is written"]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
