# SPDX-License-Identifier: Apache-2.0
"""What the host packs is what the program unpacks, field by field."""

import jax
import numpy as np
import pytest

from vllm_ironwood.runner import step_layout
from vllm_ironwood.runner.buckets import Bucket


@pytest.mark.parametrize(
    ("bucket", "pages"), [(Bucket(8, 8), 1), (Bucket(24, 5), 3), (Bucket(1, 1), 7)]
)
def test_every_field_arrives_unchanged(bucket, pages):
    rng = np.random.default_rng(0)
    packed = np.zeros(step_layout.packed_size(bucket, pages), np.int32)
    fields = step_layout.host_views(packed, bucket, pages)
    for field in fields:
        if field.dtype == np.float32:
            field[...] = rng.normal(size=field.shape)
        else:
            info = np.iinfo(field.dtype)
            field[...] = rng.integers(info.min, info.max, field.shape, dtype=field.dtype)
    unpacked = jax.jit(lambda x: step_layout.unpack(x, bucket, pages))(packed)
    for name, host, device in zip(fields._fields, fields, unpacked, strict=True):
        assert device.dtype == host.dtype, name
        np.testing.assert_array_equal(device, host, err_msg=name)
