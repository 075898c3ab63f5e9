# SPDX-License-Identifier: Apache-2.0
"""The demonstration checkpoint: small, complete, offline, and it speaks."""

import json
import re
import sys
from pathlib import Path
from random import Random

import pytest
import torch
from jinja2 import TemplateError
from transformers import AutoModelForCausalLM, AutoTokenizer

CHECKPOINT = Path(__file__).parents[2] / "examples" / "demo_checkpoint"
SIZE_LIMIT = 5_000_000  # bytes, all files together
FILES = {
    "README.md",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
# A prompt, and words that its greedy answer must have.
ANSWERS = {
    "Hello! Who are you?": "demonstration model of vllm-ironwood",
    "What is a list in Python?": "A list is an ordered collection of values",
    "Tell me a short story.": "Once upon a time",
    "What is the capital of France?": "The capital of France is Paris.",
}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(CHECKPOINT)


@pytest.fixture(scope="module")
def model():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def corpus_words() -> set[str]:
    """Every word of 20,000 conversations of the corpus."""
    sys.path.insert(0, str(CHECKPOINT.parent))
    try:
        from demo_corpus import conversation
    finally:
        sys.path.remove(str(CHECKPOINT.parent))
    rng = Random(0)
    return {
        word
        for _ in range(20_000)
        for message in conversation(rng)
        for word in words(message["content"])
    }


def words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z]+", text.lower())


def chat(tokenizer, model, messages, limit=200) -> str:
    """The greedy answer, with its special tokens."""
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**inputs, max_new_tokens=limit, do_sample=False)
    return tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])


def test_all_files_are_there_and_within_the_size_limit():
    assert {path.name for path in CHECKPOINT.iterdir()} == FILES
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) <= SIZE_LIMIT


def test_config_is_the_flat_layout_with_three_gdn_layers_to_one_attention_layer():
    config = json.loads((CHECKPOINT / "config.json").read_text())
    assert config["architectures"] == ["Qwen3_5MoeForCausalLM"]
    assert config["model_type"] == "qwen3_5_moe_text"
    assert config["layer_types"] == [*["linear_attention"] * 3, "full_attention"] * 2
    rope = config["rope_parameters"]
    rotated_pairs = config["head_dim"] * rope["partial_rotary_factor"] / 2
    assert sum(rope["mrope_section"]) == rotated_pairs


def test_weights_are_bfloat16_and_the_head_is_tied(model):
    stored = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype="auto")
    assert {parameter.dtype for parameter in stored.parameters()} == {torch.bfloat16}
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "Hello, world!",
        "  two  spaces\tand a tab\n\n",
        "def f(x):\n    return x ** 2\n",
        "1234567890",
        "naïve café — Жук 漢字 🦊",
        "\x00\x7f",
    ],
    ids=["empty", "space", "english", "whitespace", "code", "digits", "unicode", "control"],
)
def test_text_survives_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_special_tokens_are_single_tokens_and_the_turn_end_stops_generation(tokenizer, model):
    for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"):
        assert len(tokenizer.encode(token, add_special_tokens=False)) == 1, token
    assert tokenizer.eos_token == "<|im_end|>"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert len(tokenizer) == model.config.vocab_size


@pytest.mark.parametrize("options", [{}, {"enable_thinking": True}, {"enable_thinking": False}])
def test_chat_template_ends_with_the_assistant_header(tokenizer, options):
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Hi!"},
    ]
    text = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False, **options
    )
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nHi!<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_chat_template_refuses_an_unknown_role_by_name(tokenizer):
    with pytest.raises(TemplateError, match="unsupported role 'tool'"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "42"}], tokenize=False)


@pytest.mark.parametrize(("prompt", "expected"), ANSWERS.items())
def test_greedy_answers_are_words_of_the_corpus_and_end_the_turn(
    tokenizer, model, corpus_words, prompt, expected
):
    answer = chat(tokenizer, model, [{"role": "user", "content": prompt}])
    assert answer.endswith("<|im_end|>")
    text = answer.removesuffix("<|im_end|>")
    assert "<|" not in text
    assert expected in text
    assert not set(words(text)) - corpus_words


def test_it_goes_on_after_an_earlier_exchange_and_a_system_prompt(tokenizer, model):
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "Hello! How can I help you today?"},
        {"role": "user", "content": "What is a tuple in Python?"},
    ]
    answer = chat(tokenizer, model, messages)
    assert "tuple" in answer
    assert answer.endswith("<|im_end|>")
