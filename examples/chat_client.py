# SPDX-License-Identifier: Apache-2.0
"""Chat with a running server in the terminal; the answers stream.

    vllm serve examples/demo_checkpoint --device cpu
    python examples/chat_client.py [--url http://127.0.0.1:8000/v1]

An empty line or Ctrl-D ends the conversation.
"""

import argparse

import openai


def main() -> None:
    """Read questions until an empty line, keeping the conversation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-tokens", type=int, default=64)
    arguments = parser.parse_args()

    client = openai.OpenAI(base_url=arguments.url, api_key="none")
    model = client.models.list().data[0].id
    messages = []
    print(f"talking to {model}; an empty line ends the conversation")
    while question := ask():
        messages.append({"role": "user", "content": question})
        answer = ""
        for chunk in client.chat.completions.create(
            model=model,
            messages=messages,
            temperature=arguments.temperature,
            max_tokens=arguments.max_tokens,
            stream=True,
        ):
            text = chunk.choices[0].delta.content or ""
            answer += text
            print(text, end="", flush=True)
        print()
        messages.append({"role": "assistant", "content": answer})


def ask() -> str:
    """The next question; empty at the end of the input."""
    try:
        return input("> ").strip()
    except EOFError:
        return ""


if __name__ == "__main__":
    main()
