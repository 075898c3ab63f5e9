# SPDX-License-Identifier: Apache-2.0
"""Generate text in a Python program, with no server.

    python examples/offline.py [MODEL] [--device auto|tpu|cpu]

MODEL is a directory with a Qwen 3.5 MoE checkpoint; by default the one in examples/.
"""

import argparse
from pathlib import Path

from vllm import LLM, SamplingParams

PROMPTS = ("Hello! Who are you?", "What is a list in Python?", "What is seven plus five?")


def main() -> None:
    """Answer PROMPTS in one batch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default=Path(__file__).parent / "demo_checkpoint")
    parser.add_argument("--device", choices=("auto", "tpu", "cpu"), default="cpu")
    arguments = parser.parse_args()

    llm = LLM(str(arguments.model), additional_config={"device": arguments.device})
    conversations = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    answers = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=64))
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        print(f"{prompt}\n    {answer.outputs[0].text.strip()}\n")


if __name__ == "__main__":
    main()
