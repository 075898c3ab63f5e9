# SPDX-License-Identifier: Apache-2.0
"""Profiles on request: vLLM's start and stop, JAX's trace.

``--profiler-config.profiler=torch --profiler-config.torch_profiler_dir=DIRECTORY`` is how vLLM
spells "traces may be asked for, and go there"; what is written is a JAX profile, for XProf or
TensorBoard.
"""

from pathlib import Path

import jax
from vllm.config.profiler import ProfilerConfig, validate_profile_prefix
from vllm.logger import init_logger

logger = init_logger("vllm.ironwood.profiling")


class ProfileError(RuntimeError):
    """A profile was started or stopped out of turn, or asked for what JAX does not offer."""


class Profiler:
    """At most one profile at a time, each in a directory of its own."""

    def __init__(self, config: ProfilerConfig) -> None:
        self._enabled = config.profiler is not None
        self._directory = Path(config.torch_profiler_dir)
        self._started = 0
        self._current: Path | None = None

    def start(self, name: str | None = None, **unsupported: object) -> None:
        """Begin a profile in the directory ``name``, or ``profile-1`` and so on.

        Raises:
            ProfileError: profiles are not enabled, one is already being written, the
                directory exists, or an option is given that JAX's profiler does not have.
            ValueError: the name is no plain file name.
        """
        if not self._enabled:
            raise ProfileError(
                "profiles are not enabled: start with --profiler-config.profiler=torch "
                "--profiler-config.torch_profiler_dir=DIRECTORY"
            )
        asked = sorted(option for option, value in unsupported.items() if value is not None)
        if asked:
            raise ProfileError(f"a JAX profile has no {', '.join(asked)}: leave it out")
        if self._current is not None:
            raise ProfileError(f"a profile is already being written to {self._current}")
        target = self._free_directory(validate_profile_prefix(name))
        jax.profiler.start_trace(str(target))
        self._current = target

    def stop(self) -> Path:
        """End the profile.

        Returns:
            The directory it was written to.

        Raises:
            ProfileError: there is none.
        """
        if self._current is None:
            raise ProfileError("no profile is being written: start one first")
        written, self._current = self._current, None
        jax.profiler.stop_trace()
        logger.info("Wrote a JAX profile to %s (open it with XProf or TensorBoard)", written)
        return written

    def close(self) -> None:
        """End a profile that is still being written; no fault if there is none."""
        if self._current is not None:
            self.stop()

    def _free_directory(self, name: str | None) -> Path:
        if name is not None:
            target = self._directory / name
            if target.exists():
                raise ProfileError(f"{target} exists: choose another profile_prefix")
            return target
        while True:
            self._started += 1
            target = self._directory / f"profile-{self._started}"
            if not target.exists():
                return target
