# SPDX-License-Identifier: Apache-2.0
"""What transformers says: log-probabilities of whole sequences, and where they are ill-defined."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from transformers import Qwen3_5MoeForCausalLM

# Two experts whose router logits differ by less than float32 rounding may change places, and the
# output jumps: nothing after such a position can be compared.
ROUTER_TIE = 1e-5


class Scores(NamedTuple):
    """Of one sequence of T tokens."""

    logprobs: np.ndarray  # [T, V] of the next token, float32
    defined: int  # positions before the first tie between experts


class Reference:
    """A checkpoint in transformers, on the CPU."""

    def __init__(self, directory: Path, dtype: torch.dtype = torch.float32):
        self.model = Qwen3_5MoeForCausalLM.from_pretrained(
            directory, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
        )

    @torch.no_grad()
    def score(self, tokens: list[int]) -> Scores:
        """One forward pass over the whole sequence."""
        out = self.model(torch.tensor([tokens]), output_router_logits=True, use_cache=False)
        logprobs = torch.log_softmax(out.logits[0].float(), -1).numpy()
        top_k = self.model.config.num_experts_per_tok
        tied = np.zeros(len(tokens), bool)
        if top_k < self.model.config.num_experts:
            for logits in out.router_logits:
                best = torch.topk(logits.float(), top_k + 1).values
                tied |= (best[:, -2] - best[:, -1] < ROUTER_TIE).numpy()
        return Scores(logprobs, int(tied.argmax()) if tied.any() else len(tokens))
