# SPDX-License-Identifier: Apache-2.0
"""The kernel (interpreted) and the definition agree on every shape, tie and -inf."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from csrc_pallas.row_argmax import kernel
from csrc_pallas.row_argmax.api import row_argmax

INTERPRETED = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")


def both(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    array = jnp.asarray(logits, jnp.float32)
    return np.asarray(kernel.row_argmax(array, interpret=INTERPRETED)), np.asarray(
        row_argmax(array)
    )


@pytest.mark.parametrize("rows", [1, 3, 65, 130])
@pytest.mark.parametrize("vocab", [1, 127, 4096, 9000])
def test_the_largest_entry_is_found(rows, vocab):
    logits = np.random.default_rng(rows * vocab).normal(size=(rows, vocab))
    kernel_index, reference_index = both(logits)
    np.testing.assert_array_equal(kernel_index, logits.astype(np.float32).argmax(-1))
    np.testing.assert_array_equal(reference_index, kernel_index)


@pytest.mark.parametrize("columns", [(0, 1), (5, 133), (4095, 4096), (128, 8999), (8998, 8999)])
def test_the_first_of_equal_entries_wins(columns):
    logits = np.full((9, 9000), -1.0)
    logits[:, columns] = 2.0
    for index in both(logits):
        assert (index == columns[0]).all()


def test_rows_of_minus_infinity_give_the_first_column():
    logits = np.full((2, 5000), -np.inf)
    logits[1, 4999] = -1e38
    for index in both(logits):
        assert index.tolist() == [0, 4999]


def test_arguments_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="logits is bfloat16"):
        row_argmax(jnp.zeros((2, 3), jnp.bfloat16))
    with pytest.raises(ValueError, match=r"must be \[R, V\]"):
        row_argmax(jnp.zeros(3))
    with pytest.raises(ValueError, match="no column"):
        row_argmax(jnp.zeros((3, 0)))
