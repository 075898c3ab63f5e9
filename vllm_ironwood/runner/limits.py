# SPDX-License-Identifier: Apache-2.0
"""Limits of requests that the front end checks: it must not import JAX to know them."""

# Of `bad_words`, in tokens and in token sequences (vLLM makes one or two of a word).
LONGEST_BAD_WORD = 17
MOST_BAD_WORDS = 128
# Of `logprob_token_ids`; vLLM's own limit.
MOST_LOGPROB_TOKEN_IDS = 128
# Of `prompt_logprobs`: each is computed for every token of a step.
MOST_PROMPT_LOGPROBS = 20
# Tokens of what begins and ends reasoning, and of what `thinking_token_budget` ends it with.
LONGEST_REASONING_MARKER = 16
LONGEST_FORCED_END = 64
