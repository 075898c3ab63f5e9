# SPDX-License-Identifier: Apache-2.0
"""From a dispatched step's arrays to vLLM's output, when somebody asks for it."""

import jax
import numpy as np
from vllm.v1.outputs import (
    AsyncModelRunnerOutput,
    KVConnectorOutput,
    LogprobsLists,
    ModelRunnerOutput,
)

from vllm_ironwood.runner.programs import StepOutputs
from vllm_ironwood.runner.prompt_logprobs import Part, PromptLogprobs


class PendingOutput(AsyncModelRunnerOutput):
    """A step in flight. Copies to the host start at once and are waited for at the end.

    Args:
        outputs: the program's outputs, ``R`` request rows, the first ``len(request_ids)``
            of them real and in that order.
        sampled: ``[len(request_ids)]`` bool: which requests got a token in this step.
        num_logprobs: how many top logprobs to report at most, -1 = nobody asked.
        logprob_ids: by row of the step, the tokens whose logprobs are asked for by id.
        prompt_parts: the step's share of prompts whose own logprobs are asked for.
        prompts: where those are collected.
    """

    def __init__(
        self,
        request_ids: list[str],
        sampled: np.ndarray,
        outputs: StepOutputs,
        num_logprobs: int,
        logprob_ids: dict[int, list[int]],
        prompt_parts: list[Part],
        prompts: PromptLogprobs,
    ) -> None:
        self._request_ids = request_ids
        self._sampled = sampled
        self._num_logprobs = num_logprobs
        self._logprob_ids = logprob_ids
        self._prompt_parts = prompt_parts
        self._prompts = prompts
        # What nobody asked for is not copied to the host.
        self._outputs = outputs._replace(
            logprobs=outputs.logprobs if num_logprobs >= 0 else (),
            logprobs_by_id=outputs.logprobs_by_id if logprob_ids else (),
            prompt_logprobs=outputs.prompt_logprobs if prompt_parts else (),
        )
        for array in jax.tree.leaves(self._outputs):
            array.copy_to_host_async()

    def get_output(self) -> ModelRunnerOutput:
        count = len(self._request_ids)
        outputs = jax.tree.map(np.asarray, self._outputs)
        outputs = outputs._replace(
            sampled=outputs.sampled[:count],
            logprobs=jax.tree.map(lambda a: a[:count], outputs.logprobs),
        )
        tokens = outputs.sampled.reshape(-1, 1).tolist()
        if not self._sampled.all():
            tokens = [t if s else [] for t, s in zip(tokens, self._sampled, strict=True)]
        return ModelRunnerOutput(
            req_ids=self._request_ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(self._request_ids)},
            sampled_token_ids=tokens,
            logprobs=self._logprobs_lists(outputs) if self._num_logprobs >= 0 else None,
            prompt_logprobs_dict=self._prompts.add(self._prompt_parts, outputs.prompt_logprobs),
        )

    def _logprobs_lists(self, outputs: StepOutputs) -> LogprobsLists:
        columns = 1 + self._num_logprobs
        token_ids = outputs.logprobs.token_ids[:, :columns]
        logprobs = outputs.logprobs.logprobs[:, :columns]
        if self._logprob_ids:
            # All rows have as many columns; a request reads as many as it asked for.
            longest = 1 + max(map(len, self._logprob_ids.values()))
            room = ((0, 0), (0, max(0, longest - columns)))
            token_ids, logprobs = np.pad(token_ids, room), np.pad(logprobs, room)
            for row, ids in self._logprob_ids.items():
                token_ids[row, 1 : 1 + len(ids)] = ids
                logprobs[row, 1 : 1 + len(ids)] = outputs.logprobs_by_id[row, : len(ids)]
        return LogprobsLists(
            logprob_token_ids=token_ids,
            logprobs=logprobs,
            sampled_token_ranks=outputs.logprobs.ranks,
        )

    def get_kv_connector_output(self) -> KVConnectorOutput | None:
        return None
