# SPDX-License-Identifier: Apache-2.0
"""Every step the scheduler may build has a program, and there are few programs."""

import pytest

from vllm_ironwood.runner.buckets import Bucket, BucketGrid

LIMITS = [(1, 1, 2), (8, 1, 4), (17, 3, 4), (512, 16, 4), (2048, 256, 2), (100, 300, 2)]


@pytest.mark.parametrize(("max_tokens", "max_requests", "growth"), LIMITS)
def test_every_possible_step_fits_a_compiled_bucket(max_tokens, max_requests, growth):
    grid = BucketGrid(max_tokens=max_tokens, max_requests=max_requests, growth=growth)
    compiled = set(grid)
    for tokens in range(1, max_tokens + 1):
        for requests in {1, min(tokens, max_requests)}:
            bucket = grid.pick(tokens, requests)
            assert bucket in compiled
            assert bucket.tokens >= tokens
            assert bucket.requests >= requests


@pytest.mark.parametrize(("max_tokens", "max_requests", "growth"), LIMITS)
def test_padding_is_bounded_by_the_growth(max_tokens, max_requests, growth):
    grid = BucketGrid(max_tokens=max_tokens, max_requests=max_requests, growth=growth)
    for tokens in range(9, max_tokens + 1):
        assert grid.pick(tokens, 1).tokens <= growth * (tokens + 8)


def test_a_decode_step_is_as_wide_as_it_is_long():
    grid = BucketGrid(max_tokens=2048, max_requests=64, growth=2)
    assert grid.pick(33, 33) == Bucket(64, 64)


def test_the_grid_is_small():
    assert len(list(BucketGrid(max_tokens=8192, max_requests=256, growth=2))) <= 12
    assert len(list(BucketGrid(max_tokens=1024, max_requests=64, growth=4))) <= 6


@pytest.mark.parametrize(("tokens", "requests"), [(65, 1), (2, 17)])
def test_a_step_beyond_the_grid_is_an_error_that_names_its_size(tokens, requests):
    grid = BucketGrid(max_tokens=64, max_requests=16, growth=2)
    if tokens <= 16:
        tokens = 64  # more requests than the limit, on a legal number of tokens
    with pytest.raises(ValueError, match=f"{tokens} tokens and {requests} requests"):
        grid.pick(tokens, requests)
