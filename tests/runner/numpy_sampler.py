# SPDX-License-Identifier: Apache-2.0
"""An independent sampler in numpy and float64: what each field of a request means."""

from collections.abc import Sequence

import numpy as np
from vllm.sampling_params import SamplingParams


def ruled_logits(
    logits: np.ndarray, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> np.ndarray:
    """One row ``[V]`` after everything that also changes a greedy choice."""
    x = logits.astype(np.float64).copy()
    vocab = len(x)
    barred: set[int] = set()
    if params.allowed_token_ids is not None:
        barred |= set(range(vocab)) - set(params.allowed_token_ids)
    for word in params.bad_words_token_ids or ():
        *beginning, last = word
        if list(output[len(output) - len(beginning) :]) == beginning and len(output) >= len(
            beginning
        ):
            barred.add(last)
    stops = set(params.all_stop_token_ids) if len(output) < params.min_tokens else set()
    if barred | stops != set(range(vocab)):
        barred |= stops
    for token, bias in (params.logit_bias or {}).items():
        x[token] += bias
    for token in range(vocab):
        count = list(output).count(token)
        if count or token in prompt:
            factor = params.repetition_penalty
            x[token] = x[token] / factor if x[token] > 0 else x[token] * factor
        x[token] -= params.frequency_penalty * count
        x[token] -= params.presence_penalty * (count > 0)
    x[list(barred)] = -np.inf
    return x


def probabilities(ruled: np.ndarray, params: SamplingParams) -> np.ndarray:
    """``[V]`` chance of each token; a temperature below 1e-5 is greedy."""
    if params.temperature < 1e-5:
        return np.eye(len(ruled))[int(np.argmax(ruled))]
    x = ruled / params.temperature
    p = np.exp(x - x.max())
    p /= p.sum()
    kept = p >= params.min_p * p.max()
    kept &= p > 0
    if 0 < params.top_k < len(p):
        kept &= p >= np.sort(np.where(kept, p, 0))[::-1][params.top_k - 1]
    p = np.where(kept, p, 0) / p[kept].sum()
    if params.top_p < 1:
        order = np.argsort(-p, kind="stable")
        mass_before = np.cumsum(p[order]) - p[order]
        last = order[np.flatnonzero(mass_before < params.top_p)[-1]]
        p = np.where(p >= p[last], p, 0)
    return p / p.sum()
