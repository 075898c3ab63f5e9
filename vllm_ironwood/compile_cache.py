# SPDX-License-Identifier: Apache-2.0
"""Compiled programs kept on disk, so that a second start compiles nothing."""

import os
from pathlib import Path

import jax


def directory() -> Path:
    """Where they are kept: `JAX_COMPILATION_CACHE_DIR`, else under the user's cache directory."""
    if chosen := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return Path(chosen)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "vllm-ironwood" / "programs"


def enable() -> None:
    """Make JAX keep every program, however quick it was to compile.

    JAX keys an entry by the program, the compiler's options and version, and the device, so
    entries of different models, versions and machines lie side by side. A directory that
    cannot be written costs a compile and a warning by JAX, nothing else.
    """
    jax.config.update("jax_compilation_cache_dir", str(directory()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
