# SPDX-License-Identifier: Apache-2.0
"""The command that runs vLLM's own tests: what it rewrites, keeps, deselects and reports."""

import importlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"

MODULE = """
import pytest

@pytest.mark.parametrize("kind", ["a", "b[c]"])
def test_kinds(kind):
    assert kind == "a", "only a"

class TestGroup:
    def test_inside(self):
        pass

def test_never_started():
    raise SystemExit("it was started")

def test_skipped():
    pytest.skip("no camera")
"""


@pytest.fixture
def command(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("vllm_tests")


@pytest.fixture
def plugin(command):
    return importlib.import_module("vllm_tests_plugin")


@pytest.fixture
def report(command):
    return importlib.import_module("vllm_tests_report")


def option(arguments: list[str], name: str) -> str:
    assert arguments.count(name) == 1, arguments
    return arguments[arguments.index(name) + 1]


def test_servers_get_the_cpu_and_small_limits(plugin):
    given = ["--max-model-len", "8192", "--max_num_seqs=128", "--dtype", "half", "--enforce-eager"]
    arguments = plugin.serve_arguments(given)
    assert option(arguments, "--max-model-len") == "2048"
    assert option(arguments, "--max-num-seqs") == "16"
    assert option(arguments, "--dtype") == "float32"
    assert json.loads(option(arguments, "--additional-config"))["device"] == "cpu"
    assert "--enforce-eager" in arguments


def test_servers_keep_what_is_smaller_or_of_no_concern(plugin):
    given = ["--max-model-len", "32", "--max-num-batched-tokens", "1000", "--seed", "-1"]
    arguments = plugin.serve_arguments(given)
    assert option(arguments, "--max-model-len") == "32"
    assert option(arguments, "--max-num-batched-tokens") == "1000"
    assert option(arguments, "--seed") == "-1"


def test_adapters_are_dropped_with_all_their_values(plugin):
    given = ["--enable-lora", "--lora-modules", "one=/a", "two=/b", "--port", "1"]
    arguments = plugin.serve_arguments(given)
    assert not {"--enable-lora", "--lora-modules", "one=/a", "two=/b"} & set(arguments)
    assert option(arguments, "--port") == "1"


def test_a_value_without_an_option_is_refused(plugin):
    with pytest.raises(ValueError, match="'8192' belongs to no option"):
        plugin.serve_arguments(["8192", "--seed", "0"])


def test_engines_get_the_cpu_and_small_limits(plugin):
    given = {"max_model_len": None, "max_num_seqs": 400, "dtype": "half", "kernel_config": {}}
    given["enable_chunked_prefill"] = False
    arguments = plugin.llm_arguments({**given, "additional_config": {"state_slots": 3}})
    assert arguments["max_model_len"] == 2048
    assert arguments["max_num_seqs"] == 16
    assert arguments["dtype"] == "float32"
    assert arguments["max_num_batched_tokens"] == 512
    assert arguments["additional_config"] == {"state_slots": 3, **plugin.ADDITIONAL_CONFIG}
    assert not {"kernel_config", "enable_chunked_prefill"} & set(arguments)


@pytest.mark.parametrize(
    ("pattern", "test", "fits"),
    [
        ("test_a", "test_a", True),
        ("test_a", "test_a[1]", True),
        ("test_a", "test_ab", False),
        ("test_a[1]", "test_a[1]", True),
        ("test_a[1]", "test_a1", False),
        ("test_a[*-lora]", "test_a[x[y]-lora]", True),
        ("test_a[*-lora]", "test_a[lora]", False),
        ("TestG::*", "TestG::test_a", True),
        ("*", "test_a", True),
    ],
)
def test_patterns_of_the_plan(plugin, pattern, test, fits):
    assert plugin.reason_for(test, {pattern: "why"}) == ("why" if fits else None)


def test_outcomes_of_a_run_are_recorded(tmp_path, plugin, report):
    (tmp_path / "test_module.py").write_text(MODULE)
    (tmp_path / "without_vllm.py").write_text(
        "from vllm_tests_plugin import pytest_configure  # and no rewriting of engines"
    )
    results, order = tmp_path / "results.jsonl", tmp_path / "order.json"
    deselect = {"test_never_started": "needs a camera"}
    order.write_text(json.dumps({"results": str(results), "deselect": deselect}))
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "without_vllm", "test_module.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            plugin.VARIABLE: str(order),
            "PYTHONPATH": os.pathsep.join([str(SCRIPTS), str(tmp_path)]),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = {name: result.outcome for name, result in report.read(results).items()}
    assert found == {
        "test_kinds[a]": "passed",
        "test_kinds[b[c]]": "failed",
        "TestGroup::test_inside": "passed",
        "test_never_started": "deselected",
        "test_skipped": "skipped",
    }, run.stdout + run.stderr
    read = report.read(results)
    assert read["test_kinds[b[c]]"].message.startswith("call: AssertionError: only a")
    assert read["test_never_started"].message == "needs a camera"


def write_results(path: Path, *rows: tuple[str, str, str]) -> Path:
    lines = [json.dumps(dict(zip(("test", "outcome", "message"), row))) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_page_counts_and_explains(tmp_path, command, report):
    file = command.TestFile("a/test_x.py", {"test_gpu": "GPU only"}, {"test_odd": "odd | even"})
    results = write_results(
        tmp_path / "x",
        ("test_odd[1]", "failed", "call: no"),
        ("test_odd[2]", "failed", "call: no"),
        ("test_gpu", "deselected", "GPU only"),
        ("test_ok", "not run", ""),
        ("test_ok", "passed", ""),
    )
    page, wrong = report.write("1.2.3", [(file, results)], {"b/*": "images"})
    assert wrong == []
    assert "vLLM 1.2.3's source release" in page
    assert "| `a/test_x.py` | 1 | 2 | 1 | 0 |" in page
    assert "| `a/test_x.py::test_odd` | failed | 2 | odd \\| even |" in page
    assert "| `a/test_x.py::test_gpu` | deselected | 1 | GPU only |" in page
    assert "| `b/*` | images |" in page


def test_what_contradicts_the_plan_is_named(tmp_path, command, report):
    file = command.TestFile("x.py", {"test_gone": "GPU only"}, {"test_mended": "a reason"})
    results = write_results(
        tmp_path / "x",
        ("test_mended", "passed", ""),
        ("test_new", "failed", "call: boom"),
        ("test_slow", "not run", ""),
    )
    _, wrong = report.write("1", [(file, results)], {})
    assert wrong == [
        "x.py::test_mended passed; take its reason out of the plan",
        "x.py::test_new failed without a reason in the plan: call: boom",
        "x.py::test_slow was not reached; run it again with a longer --timeout",
        "x.py: test_gone fits no test; take it out of the plan",
    ]


def test_a_file_without_results_is_named(tmp_path, command, report):
    _, wrong = report.write("1", [(command.TestFile("x.py"), tmp_path / "none")], {})
    assert wrong == ["x.py: no results; run the command with --only x.py"]


def test_a_failed_tear_down_is_a_failure(tmp_path, report):
    rows = [("test_a", "passed", ""), ("test_a", "failed", "teardown: left over")]
    assert report.read(write_results(tmp_path / "x", *rows))["test_a"].outcome == "failed"


def test_only_tests_are_unpacked(tmp_path, command):
    source = tmp_path / "vllm-1.0"
    for name in ("tests/a/test_a.py", "vllm/core.py"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("")
    archive = tmp_path / "vllm-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(source, "vllm-1.0")
    command.unpack(archive, tmp_path / "out")
    assert (tmp_path / "out" / "tests" / "a" / "test_a.py").is_file()
    assert not (tmp_path / "out" / "vllm").exists()


def test_an_archive_without_tests_is_refused(tmp_path, command):
    archive = tmp_path / "other.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(SCRIPTS / "demo.py", "other-1.0/demo.py")
    with pytest.raises(command.VllmTestsError, match=r"other\.tar\.gz holds no tests/"):
        command.unpack(archive, tmp_path / "out")


def test_model_names_lead_to_the_checkpoint(tmp_path, command, demo_checkpoint):
    from huggingface_hub import snapshot_download

    for _ in range(2):
        command.make_hub(tmp_path, ["Organisation/Name"], demo_checkpoint)
    path = snapshot_download("Organisation/Name", cache_dir=tmp_path, local_files_only=True)
    found = {file.name: file.resolve() for file in Path(path).iterdir()}
    assert found == {file.name: file for file in demo_checkpoint.iterdir()}


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ('[[file]]\npath = "a.py"\n', "lists a.py twice"),
        ('[[file]]\npath = "b.py"\nfails = {test_b = " "}\n', "gives no reason for test_b"),
    ],
)
def test_a_plan_with_a_fault_is_refused(tmp_path, command, extra, message):
    plan = tmp_path / "plan.toml"
    head = 'models = []\npackages = []\n[not_run]\n[[file]]\npath = "a.py"\n'
    plan.write_text(head + extra)
    with pytest.raises(command.VllmTestsError, match=message):
        command.Plan.read(plan)


def test_the_plan_of_the_repository_is_sound(command):
    plan = command.Plan.read(command.PLAN)
    assert plan.choose(["test_sampling_params_e2e"])[0].path.startswith("v1/sample/")
    with pytest.raises(command.VllmTestsError, match="no file of the plan contains no_such"):
        plan.choose(["no_such"])
