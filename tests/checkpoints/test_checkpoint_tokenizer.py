# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of random checkpoints, as transformers loads it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from vllm_ironwood.checkpoints import make_checkpoint
from vllm_ironwood.checkpoints.sizes import SPECIAL_TOKENS
from vllm_ironwood.checkpoints.tokenizer import SMALLEST_VOCABULARY, build_tokenizer


@pytest.fixture(scope="module", params=["flat", "nested"])
def tokenizer(tmp_path_factory, request):
    directory = tmp_path_factory.mktemp("tokenizer")
    make_checkpoint(directory, layout=request.param, overrides={"vocab_size": 1013})
    return AutoTokenizer.from_pretrained(directory)


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text_survives_encoding_and_decoding(text):
    small = build_tokenizer(700)
    assert small.decode(small.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "Hello, world!  Two  spaces\n\tand a tab.",
        "Ünïcödé 中文 🙂 \u200d",
        "it's",
        "\x00\x7f",
    ],
)
def test_transformers_round_trips_text(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(0 <= token < 1013 for token in ids)


@pytest.mark.parametrize("vocab_size", [SMALLEST_VOCABULARY, SMALLEST_VOCABULARY + 1, 512, 32768])
def test_the_vocabulary_is_exactly_as_large_as_asked(vocab_size):
    built = build_tokenizer(vocab_size)
    assert sorted(built.get_vocab().values()) == list(range(vocab_size))
    specials = [built.token_to_id(token) for token in SPECIAL_TOKENS]
    assert specials == list(range(vocab_size - len(SPECIAL_TOKENS), vocab_size))


def test_merges_are_used(tokenizer):
    text = "the rest is another test"
    assert len(tokenizer.encode(text)) < len(text) * 0.7


def test_transformers_sees_the_whole_vocabulary_and_the_special_tokens(tokenizer):
    assert len(tokenizer) == 1013
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"


def test_the_chat_template_renders_turns_and_the_prompt_for_an_answer(tokenizer):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert tokenizer.decode(ids) == rendered


def test_too_large_a_vocabulary_is_refused():
    with pytest.raises(ValueError, match="vocab_size 1000000 is too large"):
        build_tokenizer(1_000_000)
