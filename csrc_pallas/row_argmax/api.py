# SPDX-License-Identifier: Apache-2.0
"""What callers import: `row_argmax`."""

import jax
import jax.numpy as jnp

from csrc_pallas import checks
from csrc_pallas.row_argmax import kernel, reference


def row_argmax(logits: jax.Array) -> jax.Array:
    """The index of the largest entry of each row, the first of several equal ones.

    XLA's own argmax on a TPU carries values and indices of a whole row block through registers
    and spills: 2.7 times the time it takes to read the logits. The kernel reads them once.

    Args:
        logits: float32 [R, V], without NaN; a row of -inf alone gives 0.

    Returns:
        int32 [R].

    Raises:
        ValueError: the logits have another rank or dtype, or no column.
    """
    checks.check_rank("logits", logits, "[R, V]")
    checks.check_dtype("logits", logits, jnp.float32)
    if logits.shape[1] == 0:
        raise ValueError("logits has no column to choose from")
    return jax.lax.platform_dependent(logits, tpu=kernel.row_argmax, default=reference.row_argmax)
