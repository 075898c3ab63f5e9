# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from csrc_pallas import ragged_batch, work_items
from tests.kernels.ragged import step


def test_rows_know_their_request_and_position():
    batch = step([7, 0], [(3, 0), (2, 3), (0, 2)]).batch(max_requests=6)
    assert int(ragged_batch.num_tokens(batch)) == 7
    np.testing.assert_array_equal(ragged_batch.query_len(batch), [1, 1, 0, 3, 2, 0])
    request = jax.jit(ragged_batch.token_request, static_argnums=1)(batch, 9)
    np.testing.assert_array_equal(request, [0, 1, 3, 3, 3, 4, 4, 6, 6])
    position = jax.jit(ragged_batch.token_position, static_argnums=1)(batch, 9)
    np.testing.assert_array_equal(position, [7, 0, 2, 3, 4, 0, 1, 0, 0])


def test_an_empty_step_has_only_padding_rows():
    batch = step([], []).batch(max_requests=2)
    np.testing.assert_array_equal(ragged_batch.token_request(batch, 3), [2, 2, 2])
    np.testing.assert_array_equal(ragged_batch.token_position(batch, 3), [0, 0, 0])


@pytest.mark.parametrize("counts", [[3, 0, 1], [0, 0, 2], [0, 0], [1]])
def test_work_items_list_every_item_of_every_owner_once(counts):
    items = work_items.work_items(jnp.asarray(counts, jnp.int32))
    listed = [tuple(map(int, work_items.locate(items, i))) for i in range(int(items.total))]
    assert listed == [(owner, i) for owner, n in enumerate(counts) for i in range(n)]
