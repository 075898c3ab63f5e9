# SPDX-License-Identifier: Apache-2.0
"""The live requests, as arrays: one row per request, owned by one class."""

from collections.abc import Iterable, Sequence

import numpy as np
from vllm.sampling_params import SamplingParams

from vllm_ironwood.runner.thinking_budget import ReasoningMarkers
from vllm_ironwood.runner.token_rules import RuleTables, asks_for_rules, rules_of

# vLLM's top_k of 0 and -1 both mean "all"; the device needs one spelling of it.
TOP_K_ALL = 0
# vLLM sets no upper limit; from here on it limits nothing, whatever the vocabulary.
LARGEST_TOP_K = 2**31 - 1

# vLLM's -1, all of the vocabulary, as the largest number of a step.
ALL_LOGPROBS = 2**31 - 1

SAMPLING = np.dtype(
    [
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("top_k", np.int32),  # TOP_K_ALL: no limit
        ("seed", np.uint32),  # of the request's random stream
        ("num_logprobs", np.int32),  # -1: none asked for; 0: that of the sampled token
        ("num_logprob_ids", np.int32),  # tokens whose logprobs are asked for by id
        ("num_prompt_logprobs", np.int32),  # likewise
        ("min_p", np.float32),
        ("presence_penalty", np.float32),
        ("frequency_penalty", np.float32),
        ("repetition_penalty", np.float32),
        ("has_rules", np.bool_),  # a row of the device's tables of token rules is set for it
        ("min_len", np.int32),  # no stop token before it has this many tokens, prompt included
        ("prompt_len", np.int32),
    ]
)


class RequestTable:
    """Host state of every request the scheduler has not finished, one row each.

    A row does not move while its request runs, so it is also the request's place in the
    device-side array of last tokens. A preempted request gives its row back (more may wait
    than ``max_requests``) and takes a new one when it resumes.

    Attributes (``N`` rows):
        tokens: ``[N, max_model_len]`` int32, the tokens known to the host: the prompt, or
            after a resumption the prompt and what had been generated.
        known_len: ``[N]`` int32, how many of them. A step that computes position
            ``known_len - 1`` or later samples; inputs from ``known_len`` on are read from
            the device, where the previous step left them.
        computed: ``[N]`` int32, tokens whose state and pages exist or are in flight, as the
            scheduler counts them.
        pages: ``[N, pages_per_request]`` int32, the attention block table.
        states: ``[N, states_per_request]`` int32, the state slot table.
        pages_used, states_used: ``[N]`` int32, how far each table is filled.
        sampling: ``[N]`` records of :data:`SAMPLING`.
    """

    def __init__(
        self,
        *,
        max_requests: int,
        max_model_len: int,
        block_size: int,
        state_block_size: int,
        engine_seed: int,
        markers: ReasoningMarkers | None = None,
    ) -> None:
        n = max_requests
        self.capacity = n
        self.block_size = block_size
        self.state_block_size = state_block_size
        self.tokens = np.zeros((n, max_model_len), np.int32)
        self.known_len = np.zeros(n, np.int32)
        self.computed = np.zeros(n, np.int32)
        self.pages = np.zeros((n, -(-max_model_len // block_size)), np.int32)
        self.pages_used = np.zeros(n, np.int32)
        self.states = np.zeros((n, -(-max_model_len // state_block_size)), np.int32)
        self.states_used = np.zeros(n, np.int32)
        self.sampling = np.zeros(n, SAMPLING)
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(n - 1, -1, -1))
        self._preempted: dict[str, np.void] = {}
        self._params: dict[str, SamplingParams] = {}
        self._markers = markers
        self._random = np.random.default_rng(engine_seed)

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._row_of

    def rows(self, request_ids: Iterable[str]) -> np.ndarray:
        """``[len(request_ids)]`` int32 rows of live requests."""
        return np.fromiter(map(self._row_of.__getitem__, request_ids), np.int32)

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        num_computed: int,
        page_ids: Sequence[int],
        state_ids: Sequence[int],
    ) -> None:
        """Give a new request a row.

        Raises:
            RuntimeError: the request is already live, or more requests are live than
                ``max_num_seqs`` allows: the scheduler and the table disagree.
        """
        if request_id in self._row_of:
            raise RuntimeError(f"request {request_id} was scheduled as new twice")
        row = self._take_row(request_id)
        self.sampling[row] = self._sampling_record(params, len(prompt))
        self._params[request_id] = params
        self._set_tokens(row, prompt)
        self._set_blocks(row, num_computed, page_ids, state_ids)

    def resume(
        self,
        request_id: str,
        tokens: Sequence[int],
        num_computed: int,
        page_ids: Sequence[int],
        state_ids: Sequence[int],
    ) -> None:
        """A preempted request continues: its tokens so far are the prompt now."""
        row = self._take_row(request_id)
        self.sampling[row] = self._preempted.pop(request_id)
        self._set_tokens(row, tokens)
        self._set_blocks(row, num_computed, page_ids, state_ids)

    def append_blocks(
        self, request_id: str, page_ids: Sequence[int], state_ids: Sequence[int]
    ) -> None:
        row = self._row_of[request_id]
        self.pages_used[row] = _append(self.pages[row], self.pages_used[row], page_ids)
        self.states_used[row] = _append(self.states[row], self.states_used[row], state_ids)

    def preempt(self, request_id: str) -> None:
        """Take the request's row away; what it samples with is kept for :meth:`resume`."""
        row = self._row_of.pop(request_id)
        self._preempted[request_id] = self.sampling[row].copy()
        self._free_rows.append(row)

    def remove(self, request_id: str) -> None:
        """Forget a finished request. One that was aborted before its first step is unknown."""
        self._preempted.pop(request_id, None)
        self._params.pop(request_id, None)
        row = self._row_of.pop(request_id, None)
        if row is not None:
            self._free_rows.append(row)

    def rules(self, request_id: str, vocab: int) -> tuple[int, RuleTables] | None:
        """A live request's row and its token rules; None when it asks for none."""
        row = self._row_of[request_id]
        record = self.sampling[row]
        if not record["has_rules"]:
            return None
        known = self.tokens[row, : self.known_len[row]]
        prompt, generated = np.split(known, [record["prompt_len"]])
        params = self._params[request_id]
        return row, rules_of(params, prompt, generated, vocab, self._markers)

    def logprob_ids(self, request_id: str) -> list[int]:
        """Tokens that a live request asks the logprobs of by id."""
        return self._params[request_id].logprob_token_ids or []

    def _take_row(self, request_id: str) -> int:
        if not self._free_rows:
            raise RuntimeError(f"request {request_id} is one more than the {self.capacity} rows")
        row = self._row_of[request_id] = self._free_rows.pop()
        return row

    def _sampling_record(self, params: SamplingParams, prompt_len: int) -> tuple:
        if params.seed is None:
            seed = self._random.integers(2**32, dtype=np.uint32)
        else:
            seed = params.seed % 2**32
        return (
            params.temperature,
            params.top_p,
            params.top_k if 0 < params.top_k <= LARGEST_TOP_K else TOP_K_ALL,
            seed,
            _num_logprobs(params),
            len(params.logprob_token_ids or ()),
            -1 if params.prompt_logprobs is None else params.prompt_logprobs,
            params.min_p,
            params.presence_penalty,
            params.frequency_penalty,
            params.repetition_penalty,
            asks_for_rules(params),
            prompt_len + params.min_tokens,
            prompt_len,
        )

    def _set_tokens(self, row: int, tokens: Sequence[int]) -> None:
        self.tokens[row, : len(tokens)] = tokens
        self.known_len[row] = len(tokens)

    def _set_blocks(
        self, row: int, num_computed: int, page_ids: Sequence[int], state_ids: Sequence[int]
    ) -> None:
        self.computed[row] = num_computed
        self.pages_used[row] = _append(self.pages[row], 0, page_ids)
        self.states_used[row] = _append(self.states[row], 0, state_ids)


def _num_logprobs(params: SamplingParams) -> int:
    if params.logprob_token_ids:
        return 0  # those by id stand in the place of the likeliest
    if params.logprobs is None:
        return -1
    return ALL_LOGPROBS if params.logprobs == -1 else params.logprobs


def _append(table_row: np.ndarray, count: int, ids: Sequence[int]) -> int:
    end = count + len(ids)
    table_row[count:end] = ids
    return end
