# SPDX-License-Identifier: Apache-2.0
"""A byte-level BPE tokenizer of any vocabulary size, with a chat template.

Every byte is a token, so that any text survives encoding and decoding; merges of common characters
fill the vocabulary up to the asked size. Nothing is trained.
"""

import json
import string
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from vllm_ironwood.checkpoints.sizes import SPECIAL_TOKENS

CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

_BYTES = 256
SMALLEST_VOCABULARY = _BYTES + len(SPECIAL_TOKENS)
# Most frequent English letters first; "Ġ" is how byte-level BPE spells a space.
_CHARACTERS = "Ġetaoinshrdlcumwfgypbvkjxqz" + string.ascii_uppercase + string.digits


def write_tokenizer(directory: Path, tokenizer: Tokenizer, model_max_length: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    tokenizer.save(str(directory / "tokenizer.json"))
    end_of_text, _, end_of_turn, *_ = SPECIAL_TOKENS
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end_of_turn,
        "pad_token": end_of_text,
        "model_max_length": model_max_length,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def build_tokenizer(vocab_size: int) -> Tokenizer:
    """The tokenizer: bytes, then merges, then SPECIAL_TOKENS; exactly vocab_size in all.

    Raises ValueError when vocab_size has no room for all bytes and the special tokens, or when
    there are not so many merges.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise ValueError(
            f"vocab_size {vocab_size} is too small for a byte-level tokenizer, "
            f"which needs at least {SMALLEST_VOCABULARY}"
        )
    merges = list(islice(_merges(), vocab_size - SMALLEST_VOCABULARY))
    largest = SMALLEST_VOCABULARY + len(merges)
    if vocab_size > largest:
        raise ValueError(f"vocab_size {vocab_size} is too large, at most {largest} can be made")
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens += [left + right for left, right in merges]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


def _merges() -> Iterator[tuple[str, str]]:
    """Pairs of characters, then triples as pair and character, frequent characters first.

    A space is only ever the first of a token, as the text is cut before spaces.
    """
    inner = _CHARACTERS[1:]
    pairs = _ranked(list(_CHARACTERS), inner)
    yield from pairs
    yield from _ranked([left + right for left, right in pairs], inner)


def _ranked(left: list[str], right: str) -> list[tuple[str, str]]:
    ranks = ((i + j, i, j) for i in range(len(left)) for j in range(len(right)))
    return [(left[i], right[j]) for _, i, j in sorted(ranks)]
