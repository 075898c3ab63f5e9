# SPDX-License-Identifier: Apache-2.0
"""Limits of requests that the front end checks: it must not import JAX to know them."""

# Of `bad_words`, in tokens and in token sequences (vLLM makes one or two of a word).
LONGEST_BAD_WORD = 17
MOST_BAD_WORDS = 128
# Of `prompt_logprobs`: each is computed for every token of a step.
MOST_PROMPT_LOGPROBS = 20
