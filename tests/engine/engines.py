# SPDX-License-Identifier: Apache-2.0
"""Engines in this process, closed for good, and what transformers says about their answers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from vllm import LLM, SamplingParams

# Greedy choices closer than this in the reference may legitimately go either way in float32.
TIE = 1e-4


@contextmanager
def engine(checkpoint: Path, **arguments) -> Iterator[LLM]:
    """An `LLM` on the CPU in float32 in this process, shut down at the end."""
    additional = {"device": "cpu", "cpu_cache_gib": 0.25, "forbid_recompilation": True}
    additional |= arguments.pop("additional_config", {})
    arguments = {
        "dtype": "float32",
        "max_model_len": 512,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
        "disable_log_stats": False,
        "use_tqdm_on_load": False,
        **arguments,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        llm = LLM(str(checkpoint), additional_config=additional, **arguments)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def draw_prompts(count: int, vocab: int, longest: int, seed: int) -> list[list[int]]:
    """`count` prompts of random tokens; the first has one token, the last `longest`."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, count)
    lengths[0], lengths[-1] = 1, longest
    return [rng.integers(0, vocab, n).tolist() for n in lengths]


def greedy(max_tokens: int, **arguments) -> SamplingParams:
    return SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=1, **arguments
    )


def generate(llm: LLM, prompts: list[list[int]], params) -> list[tuple[list[int], list[float]]]:
    """Token ids and their logprobs for each prompt."""
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False
    )
    answers = []
    for output in outputs:
        tokens = list(output.outputs[0].token_ids)
        logprobs = [
            step[token].logprob
            for step, token in zip(output.outputs[0].logprobs, tokens, strict=True)
        ]
        answers.append((tokens, logprobs))
    return answers


class Reference:
    """Transformers in float32 on the same checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self.vocab_size = self._model.config.get_text_config().vocab_size

    @torch.inference_mode()
    def logits_after(self, prompt: list[int]) -> np.ndarray:
        """`[vocab]`: of the first token after the prompt."""
        return self._model(torch.tensor([prompt])).logits[0, -1].double().numpy()

    @torch.inference_mode()
    def logprobs_of_prompt(self, prompt: list[int]) -> np.ndarray:
        """`[len(prompt) - 1, vocab]`: of what may follow each token but the last."""
        logits = self._model(torch.tensor([prompt])).logits[0, :-1].double()
        return torch.log_softmax(logits, dim=-1).numpy()

    @torch.inference_mode()
    def assert_greedy(
        self, prompt: list[int], tokens: list[int], logprobs: list[float], tolerance: float
    ) -> None:
        """Each token is what greedy decoding of the reference picks, with its logprob.

        One forward pass over prompt and answer gives the reference's choice after every
        prefix of the answer, so equality at each position is equality of the decodes.
        """
        sequence = torch.tensor([prompt + tokens[:-1]])
        logits = self._model(sequence).logits[0, len(prompt) - 1 :].double()
        expected = torch.log_softmax(logits, -1).numpy()
        chosen = expected[np.arange(len(tokens)), tokens]
        gap = expected.max(-1) - chosen
        assert gap.max() <= TIE, f"token {gap.argmax()} of {len(tokens)} is not the greedy one"
        np.testing.assert_allclose(logprobs, chosen, atol=tolerance, rtol=0)
