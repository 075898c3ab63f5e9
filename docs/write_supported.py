# SPDX-License-Identifier: Apache-2.0
"""Write the tables of docs/supported.md from the code: ``python docs/write_supported.py``."""

from collections.abc import Iterable
from pathlib import Path

from vllm_ironwood.refused_configurations import REFUSALS
from vllm_ironwood.request_fields import HONOURED, REFUSED

PAGE = Path(__file__).parent / "supported.md"

_FIELDS = "tests/engine/test_sampling_fields.py"
_RULES = f"{_FIELDS}::test_g3_every_field_changes_the_answer_as_it_says"
_FRONT_END = f"{_FIELDS}::test_fields_of_the_front_end_and_the_scheduler_act_as_they_say"
_DRAWS = (
    "tests/runner/test_sampler.py::test_draws_come_from_the_allowed_tokens_with_their_probability"
)
_STREAMS = "tests/engine/test_sampling_front_end.py"
# Field -> the test that shows that it is honoured.
SHOWN_BY = {
    "n": _FRONT_END,
    "temperature": _DRAWS,
    "top_p": _DRAWS,
    "top_k": _DRAWS,
    "min_p": f"{_FIELDS}::test_min_p_of_one_leaves_only_the_likeliest_token",
    "presence_penalty": _RULES,
    "frequency_penalty": _RULES,
    "repetition_penalty": _RULES,
    "logit_bias": _RULES,
    "allowed_token_ids": _RULES,
    "bad_words": f"{_FIELDS}::test_bad_words_never_appear",
    "min_tokens": f"{_FIELDS}::test_min_tokens_bars_the_stop_until_it_is_reached",
    "structured_outputs": "tests/engine/test_structured_output.py::test_every_answer_fits",
    "seed": f"{_FIELDS}::test_a_seed_draws_the_same_and_another_draws_differently",
    "logprobs": ("tests/engine/test_logprobs.py::test_g2_every_number_of_logprobs_in_one_batch"),
    "logprob_token_ids": "tests/engine/test_logprobs.py::test_logprobs_of_tokens_by_id",
    "thinking_token_budget": f"{_FIELDS}::test_reasoning_is_ended_after_its_budget",
    "prompt_logprobs": (
        "tests/engine/test_prompt_logprobs.py::test_g4_they_equal_the_full_context"
    ),
    "stop": _FRONT_END,
    "stop_token_ids": _FRONT_END,
    "ignore_eos": _FRONT_END,
    "max_tokens": _FRONT_END,
    "flat_logprobs": _FRONT_END,
    "detokenize": _FRONT_END,
    "skip_special_tokens": _FRONT_END,
    "include_stop_str_in_output": _FRONT_END,
    "repetition_detection": f"{_STREAMS}::test_a_repeating_answer_is_ended",
    "skip_reading_prefix_cache": (
        f"{_STREAMS}::test_the_prefix_cache_is_not_read_by_who_does_not_want_it"
    ),
    "spaces_between_special_tokens": f"{_STREAMS}::test_special_tokens_are_spaced_as_asked",
    "output_kind": (f"{_STREAMS}::test_outputs_come_as_deltas_as_all_so_far_or_only_at_the_end"),
    "stream_interval": f"{_STREAMS}::test_a_stream_interval_bundles_tokens",
    "skip_clone": (f"{_STREAMS}::test_parameters_may_be_shared_between_requests_without_a_copy"),
    # What vLLM works out from `stop`: how much text it holds back.
    "output_text_buffer_length": _FRONT_END,
}


def tables() -> dict[str, str]:
    """The tables by the name in their marker."""
    honoured = {field: who for field, who in HONOURED.items() if not field.startswith("_")}
    return {
        "refused configurations": _table(
            ("What", "Asked for by", "Instead"),
            ((row.name, row.asked, row.instead) for row in REFUSALS),
        ),
        "honoured fields": _table(
            ("Field", "Honoured by", "Shown by"),
            ((f"`{field}`", who, _short(SHOWN_BY[field])) for field, who in honoured.items()),
        ),
        "refused fields": ", ".join(f"`{field}`" for field in REFUSED),
    }


def write_into(page: str) -> str:
    """The page with what stands between each pair of markers replaced."""
    for name, table in tables().items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        if page.count(begin) != 1:
            raise ValueError(f"{PAGE.name} must have the line {begin!r} exactly once")
        before, after = page.split(begin)
        page = f"{before}{begin}{table}\n{end}{after.split(end, 1)[1]}"
    return page


def _short(test: str) -> str:
    path, name = test.split("::")
    return f"`{Path(path).name}::{name}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(write_into(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
