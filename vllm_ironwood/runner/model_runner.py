# SPDX-License-Identifier: Apache-2.0
"""Turns what the scheduler decided into one dispatched program per step."""

from collections.abc import Callable, Sequence

import jax
import numpy as np
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput

from vllm_ironwood.cache import audit
from vllm_ironwood.cache.config_builder import ATTENTION_GROUP, STATE_GROUP
from vllm_ironwood.models.qwen3_5_moe.params import Params
from vllm_ironwood.runner import grammar, nan_fill, step_layout
from vllm_ironwood.runner.buckets import Bucket, BucketGrid
from vllm_ironwood.runner.outputs import PendingOutput
from vllm_ironwood.runner.programs import Programs, StepState
from vllm_ironwood.runner.prompt_logprobs import PromptLogprobs, parts_of_step
from vllm_ironwood.runner.requests import RequestTable

# Fields of the request table that a step takes over as they are.
_COPIED = (
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "min_p",
    "has_rules",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


class ModelRunner:
    """Owns the device state and the request table; calls go ``execute_model`` -> ``sample_tokens``.

    Sampled tokens stay on the device for the next step, so a step can be dispatched before
    the previous one has finished: the host never waits for a token to build an input.

    Args:
        num_pages: attention pages that exist; a larger id is a fault.
        num_slots: state slots that exist, likewise.
        audited_as: debugging: the number under which :mod:`vllm_ironwood.cache.audit` knows
            this engine's pools; they are checked and poisoned before each step.
    """

    def __init__(
        self,
        *,
        params: Params,
        state: StepState,
        programs: Programs,
        grid: BucketGrid,
        requests: RequestTable,
        num_pages: int,
        num_slots: int,
        audited_as: int | None,
    ) -> None:
        self._params = params
        self._state = state
        self._programs = programs
        self._grid = grid
        self.requests = requests
        self._capacity = (num_pages, num_slots)
        self._audited_as = audited_as
        self._pending: PendingOutput | None = None
        self._awaits_grammar: SchedulerOutput | None = None
        self._prompts = PromptLogprobs()

    def execute_model(self, scheduled: SchedulerOutput) -> ModelRunnerOutput | None:
        """Dispatch the step. Its output is what :meth:`sample_tokens` returns next.

        A step with structured output is dispatched there instead, where its bitmask comes.
        """
        self._update_requests(scheduled)
        if scheduled.total_num_scheduled_tokens == 0:
            return EMPTY_MODEL_RUNNER_OUTPUT
        if self._audited_as is not None:
            caches = nan_fill.check_and_fill(audit.of(self._audited_as), self._state.caches)
            self._state = self._state._replace(caches=caches)
        if self._pending is not None or self._awaits_grammar is not None:
            raise RuntimeError("a step was scheduled before the last one's tokens were taken")
        if scheduled.has_structured_output_requests:
            self._awaits_grammar = scheduled
        else:
            self._pending = self._dispatch(scheduled, None)
        return None

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> PendingOutput:
        """The output of the step that :meth:`execute_model` was given.

        Args:
            grammar_output: the bitmask of the step's structured output, where it has any.
        """
        if self._awaits_grammar is not None:
            scheduled, self._awaits_grammar = self._awaits_grammar, None
            return self._dispatch(scheduled, grammar_output)
        pending, self._pending = self._pending, None
        if pending is None:
            raise RuntimeError("sample_tokens was called with no step to sample")
        return pending

    def warm_up(self, buckets: Sequence[Bucket], *, on_done: Callable[[Bucket], None]) -> None:
        """Compile every bucket's program, then run each, so that no first request is slow."""
        self._programs.compile(buckets, self._params, self._state, on_done=on_done)
        self._state = self._programs.clear_scratch_rules(self._state)
        for bucket in buckets:
            for sampled in (False, True):
                packed, fields = self._new_buffer(bucket)
                self._fill_dummy(fields, sampled)
                self._state, outputs = self._programs.run(bucket, self._params, self._state, packed)
                jax.block_until_ready(outputs)

    def _fill_dummy(self, fields: step_layout.PackedFields, sampled: bool) -> None:
        """A decode and a prefill of no request, in the null page and the null slot.

        Kernels loop over the work there is: without rows a run would warm nothing. Nobody
        reads the null page and slot, nor the scratch row of last tokens.
        """
        longest = self.requests.tokens.shape[1]
        tokens = min(len(fields.token_ids), 1 + longest)
        fields.query_start[1:] = tokens
        fields.query_start[1] = 1
        fields.counts[:] = 1, 2
        fields.row[:] = self.requests.capacity
        fields.temperature[:] = sampled
        fields.top_p[:] = 1.0
        fields.want_logprobs[0] = sampled
        fields.want_logprobs_by_id[0] = sampled
        fields.want_prompt_logprobs[0] = sampled

    def wait(self) -> None:
        """Block until every dispatched step has finished."""
        jax.block_until_ready(self._state)

    def _update_requests(self, scheduled: SchedulerOutput) -> None:
        requests = self.requests
        for request_id in scheduled.finished_req_ids:
            requests.remove(request_id)
            self._prompts.forget(request_id)
        for request_id in scheduled.preempted_req_ids or ():
            requests.preempt(request_id)
        for new in scheduled.scheduled_new_reqs:
            requests.add(
                new.req_id,
                new.prompt_token_ids,
                new.sampling_params,
                new.num_computed_tokens,
                new.block_ids[ATTENTION_GROUP],
                new.block_ids[STATE_GROUP],
            )
            self._set_rules(new.req_id)
        cached = scheduled.scheduled_cached_reqs
        resumed = cached.resumed_req_ids
        for i, request_id in enumerate(cached.req_ids):
            blocks = cached.new_block_ids[i]
            if request_id in resumed:
                requests.resume(
                    request_id,
                    cached.all_token_ids[request_id],
                    cached.num_computed_tokens[i],
                    blocks[ATTENTION_GROUP],
                    blocks[STATE_GROUP],
                )
                self._set_rules(request_id)
                self._prompts.restart(request_id)
            elif blocks is not None:
                requests.append_blocks(request_id, blocks[ATTENTION_GROUP], blocks[STATE_GROUP])
        requests.computed[requests.rows(cached.req_ids)] = cached.num_computed_tokens

    def _set_rules(self, request_id: str) -> None:
        """Write what the request rules about tokens to the device, if it does at all."""
        found = self.requests.rules(request_id, self._programs.vocab_size)
        if found is not None:
            self._state = self._programs.set_rules(self._state, *found)

    def _dispatch(
        self, scheduled: SchedulerOutput, grammar_output: GrammarOutput | None
    ) -> PendingOutput:
        requests = self.requests
        request_ids = list(scheduled.num_scheduled_tokens)
        rows = requests.rows(request_ids)
        new_tokens = np.fromiter(scheduled.num_scheduled_tokens.values(), np.int32)
        # Kernels want the decodes first; a stable sort keeps the scheduler's order else.
        order = np.argsort(new_tokens != 1, kind="stable")
        if not (order[:-1] < order[1:]).all():
            request_ids = [request_ids[i] for i in order]
            rows, new_tokens = rows[order], new_tokens[order]

        bucket = self._grid.pick(int(new_tokens.sum()), len(rows))
        packed, fields = self._new_buffer(bucket)
        _fill(fields, requests, rows, new_tokens)
        self._check_capacity(fields, len(rows))
        asked = int(requests.sampling["num_logprobs"][rows].max())
        num_logprobs = min(asked, self._programs.vocab_size)
        fields.want_logprobs[0] = num_logprobs >= 0
        logprob_ids = {
            int(i): requests.logprob_ids(request_ids[i])
            for i in np.flatnonzero(requests.sampling["num_logprob_ids"][rows])
        }
        fields.want_logprobs_by_id[0] = bool(logprob_ids)

        prompt_parts = self._prompts.expect(parts_of_step(requests, request_ids, rows, new_tokens))
        for part in prompt_parts:
            row = requests.rows([part.request_id])[0]
            end = part.start + part.rows.stop - part.rows.start
            fields.prompt_targets[part.rows] = requests.tokens[row, part.start + 1 : end + 1]
            fields.want_prompt_logprobs[0] |= end > part.start
        bitmask = None
        if grammar_output is not None:
            fields.has_grammar[0] = 1
            bitmask = grammar.step_bitmask(
                grammar_output, request_ids, bucket.requests, self._programs.vocab_size
            )
        self._state, outputs = self._programs.run(
            bucket, self._params, self._state, packed, bitmask
        )
        sampled = fields.sample[: len(rows)] == 1
        return PendingOutput(
            request_ids,
            sampled,
            outputs,
            num_logprobs,
            logprob_ids,
            prompt_parts,
            self._prompts,
        )

    def _new_buffer(self, bucket: Bucket) -> tuple[np.ndarray, step_layout.PackedFields]:
        # Not reused: a transfer may still read the buffer of an earlier step.
        pages_per_request = self.requests.pages.shape[1]
        packed = np.zeros(step_layout.packed_size(bucket, pages_per_request), np.int32)
        return packed, step_layout.host_views(packed, bucket, pages_per_request)

    def _check_capacity(self, fields: step_layout.PackedFields, count: int) -> None:
        """An id beyond its pool would silently read or write another request's memory."""
        num_pages, num_slots = self._capacity
        largest_slot = max(fields.state_read[:count].max(), fields.state_write[:count].max())
        if fields.block_tables[:count].max() >= num_pages or largest_slot >= num_slots:
            raise RuntimeError(
                f"the scheduler handed out page {fields.block_tables[:count].max()} of {num_pages} "
                f"or state slot {largest_slot} of {num_slots}"
            )
        reads_null = (fields.state_read[:count] <= 0) & (fields.context_len[:count] > 0)
        if reads_null.any() or fields.state_write[:count].min() <= 0:
            raise RuntimeError("a scheduled request has no state slot to read or to write")


def _fill(
    fields: step_layout.PackedFields,
    requests: RequestTable,
    rows: np.ndarray,
    new_tokens: np.ndarray,
) -> None:
    """Write a step's inputs; ``rows`` and ``new_tokens`` are ``[num_requests]``, decodes first."""
    count = len(rows)
    ends = np.cumsum(new_tokens, dtype=np.int32)
    starts = ends - new_tokens
    total = int(ends[-1])
    context = requests.computed[rows]

    request_of = np.repeat(np.arange(count, dtype=np.int32), new_tokens)
    position = np.arange(total, dtype=np.int32) - starts[request_of] + context[request_of]
    token_row = rows[request_of]
    known = position < requests.known_len[token_row]
    fields.token_ids[:total] = np.where(
        known, requests.tokens[token_row, np.where(known, position, 0)], -1
    )

    fields.query_start[:count] = starts
    fields.query_start[count:] = total
    fields.context_len[:count] = context
    fields.counts[:] = np.count_nonzero(new_tokens == 1), count
    fields.block_tables[:count] = requests.pages[rows]
    last = context + new_tokens - 1
    block = requests.state_block_size
    fields.state_read[:count] = requests.states[rows, np.maximum(context - 1, 0) // block]
    fields.state_write[:count] = requests.states[rows, last // block]
    fields.row[:count] = rows
    fields.row[count:] = requests.capacity
    fields.sample[:count] = context + new_tokens >= requests.known_len[rows]
    sampling = requests.sampling[rows]
    for name in _COPIED:
        getattr(fields, name)[:count] = sampling[name]
    fields.bar_stops[:count] = context + new_tokens < sampling["min_len"]
    fields.top_p[count:] = 1.0
