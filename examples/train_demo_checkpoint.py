# SPDX-License-Identifier: Apache-2.0
"""Train the demonstration checkpoint: a Qwen 3.5 MoE of about two million parameters.

    python examples/train_demo_checkpoint.py --out examples/demo_checkpoint --steps 2500
    python examples/train_demo_checkpoint.py --out examples/demo_checkpoint --sample

The first command trains on the text of ``demo_corpus`` with transformers on one CPU thread, and
writes the checkpoint to --out every --save-every steps; the second prints answers of the checkpoint
in --out. The same arguments give the same weights on the same machine and library versions.
"""

import argparse
import copy
import functools
import math
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from demo_corpus import Message, conversation, documentation
from tokenizers import AddedToken, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5Tokenizer,
)
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe

CHAT_TEMPLATE = Path(__file__).parent / "demo_checkpoint" / "chat_template.jinja"

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VOCAB_SIZE = 1536
CONTEXT_LENGTH = 4096
ROW_LENGTH = 256  # tokens of one training row
ROWS = 4  # rows of one batch
DOCUMENTATION_SHARE = 0.03  # of the texts drawn; the rest are conversations
IGNORED = -100  # label of a token that is read but not learned (torch's cross-entropy default)

SAMPLE_PROMPTS = (
    "Hello! Who are you?",
    "What can you do?",
    "What is a list in Python?",
    "How do I write a function?",
    "Tell me a short story.",
    "Tell me a story about a dragon named Zoe.",
    "What is 3 + 4?",
    "Count to ten.",
    "What is the capital of France?",
    "What is vLLM?",
    "What is a mixture of experts?",
    "What day comes after Monday?",
    "Write a poem about the moon.",
    "Explain nuclear fusion to me.",
    "Thanks!",
)


def build_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the corpus, with the normaliser and word splitter of Qwen 3.5."""
    # AutoTokenizer gives any qwen3_5_moe_text checkpoint these two, whatever tokenizer.json says.
    tokenizer = Qwen3_5Tokenizer().backend_tokenizer
    special = [AddedToken(token, special=True) for token in (END_OF_TEXT, TURN_START, TURN_END)]
    thinking = [AddedToken(token, special=False) for token in ("<think>", "</think>")]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(thinking),
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rng = Random(seed)
    messages = [message for _ in range(20_000) for message in conversation(rng)]
    texts = [f"{message['role']}\n{message['content']}" for message in messages]
    tokenizer.train_from_iterator(texts + documentation(), trainer)
    tokenizer.add_tokens(thinking)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE.read_text(encoding="utf-8"),
    )


def build_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3_5MoeTextConfig:
    """Eight layers, every fourth with attention, each with a mixture of eight experts."""
    return Qwen3_5MoeTextConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        shared_expert_intermediate_size=64,
        max_position_embeddings=CONTEXT_LENGTH,
        # A quarter of the 64 head dimensions is rotated: 8 frequencies, shared out in 3 sections.
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
        tie_word_embeddings=True,
        eos_token_id=tokenizer.convert_tokens_to_ids(TURN_END),
        pad_token_id=tokenizer.convert_tokens_to_ids(END_OF_TEXT),
    )


def build_model(config: Qwen3_5MoeTextConfig) -> Qwen3_5MoeForCausalLM:
    """A fresh float32 model on the paths of transformers that are fastest on one CPU core."""
    model = Qwen3_5MoeForCausalLM._from_config(
        config, attn_implementation="sdpa", experts_implementation="eager"
    )
    # Shorter chunks than the default 64 do less quadratic work for heads of 32.
    modeling_qwen3_5_moe.torch_chunk_gated_delta_rule = functools.partial(
        modeling_qwen3_5_moe.torch_chunk_gated_delta_rule, chunk_size=32
    )
    for name, parameter in model.named_parameters():
        if name.endswith("dt_bias"):
            # Time steps log-uniform in [0.001, 0.1] through softplus (Mamba, arXiv 2312.00752,
            # section 3.6): the heads start with long memories, which a short training needs.
            steps = torch.exp(torch.empty_like(parameter).uniform_(math.log(1e-3), math.log(0.1)))
            parameter.data.copy_(steps + torch.log(-torch.expm1(-steps)))
    return model


class Corpus:
    """Endless token sequences and their labels, drawn with a seed."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int):
        self._encode = functools.partial(tokenizer.encode, add_special_tokens=False)
        self._end = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
        self._documentation = documentation()
        self._rng = Random(seed)

    def _conversation(self, messages: list[Message]) -> Iterator[tuple[str, bool]]:
        """Pieces of text as the chat template writes them, and whether the piece is learned."""
        for message in messages:
            yield f"{TURN_START}{message['role']}\n", False
            yield f"{message['content']}{TURN_END}", message["role"] == "assistant"
            yield "\n", False

    def _text(self) -> tuple[list[int], list[int]]:
        if self._rng.random() < DOCUMENTATION_SHARE:
            tokens = [*self._encode(self._rng.choice(self._documentation)), self._end]
            return tokens, list(tokens)
        tokens, labels = [], []
        for piece, learned in self._conversation(conversation(self._rng)):
            ids = self._encode(piece)
            tokens += ids
            labels += ids if learned else [IGNORED] * len(ids)
        return [*tokens, self._end], [*labels, IGNORED]

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 [ROWS, ROW_LENGTH] tokens and labels; every row starts with a new text."""
        rows = []
        for _ in range(ROWS):
            tokens, labels = [], []
            while len(tokens) < ROW_LENGTH:
                text_tokens, text_labels = self._text()
                tokens += text_tokens
                labels += text_labels
            rows.append((tokens[:ROW_LENGTH], labels[:ROW_LENGTH]))
        tokens, labels = zip(*rows, strict=True)
        return torch.tensor(tokens), torch.tensor(labels)


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over 100 steps, then a cosine down to 2% of the peak."""
    if step < 100:
        return peak * (step + 1) / 100
    progress = (step - 100) / max(1, steps - 100)
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


def save(model: Qwen3_5MoeForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the checkpoint with weights rounded to bfloat16."""
    rounded = copy.deepcopy(model).to(torch.bfloat16)
    # vLLM takes its default sampling from this file: a low temperature keeps the answers plain.
    rounded.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=True,
        temperature=0.3,
        top_p=0.9,
    )
    rounded.save_pretrained(out)
    tokenizer.save_pretrained(out)


def train(out: Path, steps: int, seed: int, peak: float, save_every: int) -> None:
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(seed)
    model = build_model(build_config(tokenizer))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
        fused=True,
    )
    corpus = Corpus(tokenizer, seed)
    mean_loss, started = None, time.monotonic()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak)
        tokens, labels = corpus.batch()
        # With the router logits the loss includes the term that balances the experts.
        output = model(tokens, labels=labels, use_cache=False, output_router_logits=True)
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss = output.loss.item()
        mean_loss = loss if mean_loss is None else 0.98 * mean_loss + 0.02 * loss
        done = step + 1
        if done % 20 == 0 or done == steps:
            seconds = time.monotonic() - started
            rate = done * ROWS * ROW_LENGTH / seconds
            print(
                f"step {done}/{steps} loss {mean_loss:.3f} {seconds:.0f} s {rate:.0f} tokens/s",
                flush=True,
            )
        if done % save_every == 0 or done == steps:
            save(model, tokenizer, out)


def sample(checkpoint: Path) -> None:
    """Print the greedy answers of a checkpoint to SAMPLE_PROMPTS."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    for prompt in SAMPLE_PROMPTS:
        inputs = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        output = model.generate(**inputs, max_new_tokens=200, do_sample=False)
        answer = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
        print(f"> {prompt}\n{answer}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="checkpoint directory")
    parser.add_argument("--steps", type=int, default=2500, help="training steps (default: 2500)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="peak (default: 3e-3)")
    parser.add_argument("--save-every", type=int, default=250, help="steps between checkpoints")
    parser.add_argument("--sample", action="store_true", help="print answers of --out and stop")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.sample:
        sample(arguments.out)
        return
    train(
        arguments.out,
        arguments.steps,
        arguments.seed,
        arguments.learning_rate,
        arguments.save_every,
    )


if __name__ == "__main__":
    main()
