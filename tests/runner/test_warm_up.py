# SPDX-License-Identifier: Apache-2.0
"""Warm-up runs what requests will run: a step without rows would warm no kernel."""

from typing import NamedTuple

import numpy as np
import pytest

from vllm_ironwood.runner import step_layout
from vllm_ironwood.runner.buckets import Bucket, BucketGrid
from vllm_ironwood.runner.model_runner import ModelRunner
from vllm_ironwood.runner.requests import RequestTable

MAX_REQUESTS = 5
BLOCK = 16


class Run(NamedTuple):
    bucket: Bucket
    fields: step_layout.PackedFields


class RecordingPrograms:
    """Stands for the compiled programs and keeps what they are given."""

    def __init__(self, pages_per_request: int) -> None:
        self._pages_per_request = pages_per_request
        self.compiled: list[Bucket] = []
        self.runs: list[Run] = []

    def compile(self, buckets, params, state, *, on_done) -> None:
        for bucket in buckets:
            self.compiled.append(bucket)
            on_done(bucket)

    def clear_scratch_rules(self, state):
        return state

    def run(self, bucket, params, state, packed, bitmask=None):
        assert bucket in self.compiled
        fields = step_layout.host_views(packed.copy(), bucket, self._pages_per_request)
        self.runs.append(Run(bucket, fields))
        return state, np.zeros(1)


def warm_up(max_tokens: int, max_model_len: int) -> tuple[list[Bucket], list[Run]]:
    """The buckets of a grid, and every run of the warm-up over them."""
    requests = RequestTable(
        max_requests=MAX_REQUESTS,
        max_model_len=max_model_len,
        block_size=BLOCK,
        state_block_size=BLOCK,
        engine_seed=0,
    )
    grid = BucketGrid(max_tokens=max_tokens, max_requests=MAX_REQUESTS, growth=2)
    programs = RecordingPrograms(requests.pages.shape[1])
    runner = ModelRunner(
        params=None,
        state=None,
        programs=programs,
        grid=grid,
        requests=requests,
        num_pages=2,
        num_slots=2,
        audited_as=None,
    )
    done = []
    runner.warm_up(list(grid), on_done=done.append)
    assert done == list(grid)
    return done, programs.runs


@pytest.fixture(params=[(100, 200), (100, 17), (8, 1)], ids=["ample", "short context", "smallest"])
def warmed(request) -> tuple[list[Bucket], list[Run]]:
    return warm_up(*request.param)


def test_f3_each_program_runs_a_decode_and_a_prefill(warmed):
    """Acceptance row F3."""
    buckets, runs = warmed
    assert {run.bucket for run in runs} == set(buckets)
    for bucket, fields in runs:
        num_decodes, num_requests = fields.counts
        new_tokens = np.diff(fields.query_start)
        assert new_tokens.shape == (bucket.requests,)
        assert 1 <= num_decodes < num_requests <= bucket.requests
        assert (new_tokens[:num_decodes] == 1).all()
        assert (new_tokens[num_decodes:num_requests] >= 1).all()
        assert (new_tokens[num_requests:] == 0).all()
        assert fields.query_start[0] == 0


def test_f3_the_prefill_fills_the_program_as_far_as_a_request_can():
    for max_model_len in (1, 17, 200):
        _, runs = warm_up(100, max_model_len)
        for bucket, fields in runs:
            assert fields.query_start[-1] == min(bucket.tokens, 1 + max_model_len)


def test_f3_each_program_runs_greedy_and_sampled_with_logprobs(warmed):
    """The branches that a program takes only for those who ask are run too."""
    buckets, runs = warmed
    taken = {
        (run.bucket, *(bool(flag) for flag in flags))
        for run in runs
        for flags in [
            (
                run.fields.temperature[: run.fields.counts[1]].all(),
                run.fields.want_logprobs[0],
                run.fields.want_prompt_logprobs[0],
            )
        ]
    }
    for bucket in buckets:
        assert (bucket, False, False, False) in taken
        assert (bucket, True, True, True) in taken


def test_warm_up_touches_no_request_s_memory(warmed):
    """Only the null page, the null slot and the scratch row, which nobody reads."""
    for _, fields in warmed[1]:
        assert not fields.block_tables.any()
        assert not fields.state_read.any()
        assert not fields.state_write.any()
        assert not fields.context_len.any()
        assert not fields.sample.any()
        assert (fields.row == MAX_REQUESTS).all()
