# SPDX-License-Identifier: Apache-2.0
"""Start-up failures that the user can mend: one clear line and a non-zero exit, no traceback.

A start-up failure surfaces in one of two processes:

- The front end (``vllm serve``, ``LLM``) builds the configuration. What goes wrong there is
  uncaught, so ``sys.excepthook`` sees it: :func:`install_excepthook`.
- The engine core loads the weights. vLLM logs a traceback of whatever is raised there, then
  the front end raises "Engine core initialization failed" with a traceback of its own.
  :func:`one_line_exit` prints the line in the engine core and leaves with ``os.EX_CONFIG``;
  the hook of the front end finds that exit code and stays silent.

Errors that are nobody's configuration keep their traceback.
"""

import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

PREFIX = "vllm-ironwood: error: "

_ENGINE_CORE_FAILED = "Engine core initialization failed"
# Where vLLM builds its configuration; an exception that passed through is about arguments.
_ARGUMENTS_MODULE = os.path.join("vllm", "engine", "arg_utils.py")


class ConfigurationError(Exception):
    """What was asked for cannot be served. The message is one line that says what to do.

    Deliberately no ``ValueError``: pydantic wraps a ``ValueError`` raised while vLLM builds
    its configuration into several lines of its own, and lets every other exception through.
    """


def install_excepthook() -> None:
    """Print expected start-up failures in one line; leave the others to the hook in place."""
    previous = sys.excepthook
    if getattr(previous, "prints_one_line", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        line = startup_failure_line(error, trace)
        if line is None:
            previous(kind, error, trace)
        elif line:
            print(line, file=sys.stderr)

    hook.prints_one_line = True
    sys.excepthook = hook


def startup_failure_line(error: BaseException, trace: TracebackType | None) -> str | None:
    """The line to print for an uncaught error, "" to print nothing, None to keep its traceback.

    In a program of the user's own only this package's errors are shortened; the command line
    of vLLM also gets one line for what vLLM and transformers say about its arguments.
    """
    if isinstance(error, ConfigurationError):
        return PREFIX + _squeeze(str(error))
    core_failed = isinstance(error, RuntimeError) and _ENGINE_CORE_FAILED in str(error)
    if core_failed and os.EX_CONFIG in _engine_exit_codes(trace):
        return ""
    if not _is_vllm_command():
        return None
    if isinstance(error, KeyboardInterrupt):
        return "vllm-ironwood: interrupted"
    if core_failed:
        return PREFIX + "the engine core stopped before it was ready; its own error is above"
    if _is_about_arguments(error, trace):
        return PREFIX + _squeeze(_explain(error))
    return None


@contextmanager
def one_line_exit(*expected: type[Exception]) -> Iterator[None]:
    """Around what the engine core does at start: ``expected`` errors end it in one line.

    The process ends at once, without the clean-up of an interpreter that has JAX loaded: that
    takes seconds, in which vLLM would end it by a signal and its exit code would be lost.

    Args:
        expected: exception types whose message is for the user, beside
            :class:`ConfigurationError`.

    Raises:
        ConfigurationError: where the engine runs inside the caller's own process
            (``VLLM_ENABLE_V1_MULTIPROCESSING=0``), which must not be ended for it.
    """
    try:
        yield
    except (ConfigurationError, *expected) as error:
        message = _squeeze(str(error))
        if multiprocessing.parent_process() is None:
            raise ConfigurationError(message) from error
        print(PREFIX + message, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(os.EX_CONFIG)


def _is_vllm_command() -> bool:
    """Whether this process is ``vllm ...`` or ``python -m vllm...``."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return os.path.basename(sys.argv[0]) == "vllm" or (
        spec is not None and spec.name.partition(".")[0] == "vllm"
    )


def _engine_exit_codes(trace: TracebackType | None) -> set[int | None]:
    """Exit codes of the engine cores that vLLM was waiting for when it raised.

    They are not in the message: vLLM writes it when the processes are only about to end.
    """
    return {
        process.exitcode
        for frame, _ in traceback.walk_tb(trace)
        for process in getattr(
            getattr(frame.f_locals.get("launch"), "engine_manager", None), "processes", ()
        )
    }


def _is_about_arguments(error: BaseException, trace: TracebackType | None) -> bool:
    """Whether vLLM raised it, on purpose, while it made its configuration from arguments.

    pydantic's ``ValidationError`` and the hub's errors derive from these types; a
    ``TypeError``, ``KeyError`` or ``AssertionError`` on the way would be a bug.
    """
    return isinstance(error, (ValueError, OSError, NotImplementedError)) and any(
        frame.filename.endswith(_ARGUMENTS_MODULE) for frame in traceback.extract_tb(trace)
    )


def _explain(error: BaseException) -> str:
    """The message proper: pydantic's wrapping and its links taken away."""
    if hasattr(error, "errors") and hasattr(error, "title"):
        return "; ".join(
            detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
            for detail in error.errors()
        )
    return str(error)


def _squeeze(message: str) -> str:
    return " ".join(message.split())
