# SPDX-License-Identifier: Apache-2.0
"""Run vLLM command lines as processes of their own, importing vLLM once for all of them.

Starting ``vllm`` takes 10 to 30 s of imports. This program imports it once, then forks for each
case and lets the fork run the same function as the console script. Every fork leads a session
of its own, so that what it leaves behind can be found.

Usage: ``python forked_commands.py CASES.json``. The file maps the name of a case to ``argv``,
``environment`` and ``program``: Python source to run in place of the command line, or before it.
The output of a case goes to NAME.out beside the file, {NAME: [exit code, left-over processes]}
to results.json.
"""

import gc
import importlib
import json
import os
import pkgutil
import sys
from pathlib import Path
from typing import Any

import vllm.entrypoints.cli.main
import vllm.v1.engine.async_llm
from vllm import LLM
from vllm.entrypoints.common.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser


def warm_up() -> None:
    """Do once what each command would do again: the imports of its sub-commands, and reading
    vLLM's own sources for the help of some 300 arguments."""
    for module in pkgutil.iter_modules(vllm.entrypoints.cli.__path__):
        importlib.import_module(f"vllm.entrypoints.cli.{module.name}")
    importlib.import_module("vllm.entrypoints.cli.benchmark.main")
    make_arg_parser(FlexibleArgumentParser())
    # Else every fork looks through all these objects again when it ends.
    gc.freeze()


def processes_of_session(session: int) -> list[str]:
    """Command lines of the processes alive in a session."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            # The name in parentheses may hold spaces; the session is the fourth field after it.
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append((directory / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def become(case: dict[str, Any], output: Path) -> None:
    """Turn a fork into a fresh process of the case."""
    os.setsid()
    log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(case.get("environment", {}))
    sys.argv = case["argv"]


def main(cases_file: Path) -> None:
    warm_up()
    results = {}
    for name, case in json.loads(cases_file.read_text()).items():
        child = os.fork()
        if child == 0:
            become(case, cases_file.parent / f"{name}.out")
            # What is raised here ends the process as it would end the command.
            exec(case.get("program", ""), {"__name__": "__main__", "LLM": LLM})
            if sys.argv[0] == "vllm":
                vllm.entrypoints.cli.main.main()
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        results[name] = [os.waitstatus_to_exitcode(status), processes_of_session(child)]
    (cases_file.parent / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
