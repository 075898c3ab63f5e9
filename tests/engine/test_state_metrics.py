# SPDX-License-Identifier: Apache-2.0
"""`LLM.get_metrics()` has the GDN state metrics, with the counts worked out by hand."""

from tests.engine.engines import engine, greedy

SHAPES = {
    "max_model_len": 6144,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 2048,
    "additional_config": {"state_slots": 40, "debug_fill_nan": True},
}
PROMPT = [1 + i % 300 for i in range(300)]


def test_two_identical_prompts_count_one_hit(tiny_checkpoint):
    with engine(tiny_checkpoint, **SHAPES) as llm:
        for prompt in (PROMPT, PROMPT, [1]):
            llm.generate({"prompt_token_ids": prompt}, greedy(2), use_tqdm=False)
        values = {m.name: m.value for m in llm.get_metrics() if m.name.startswith("vllm:gdn_")}
    assert values.pop("vllm:gdn_snapshots") >= 1
    assert values == {
        "vllm:gdn_state_slots": 39,  # of 40 one is the null slot
        "vllm:gdn_state_slots_in_use": 0,
        "vllm:gdn_snapshot_hits": 1,
        "vllm:gdn_snapshot_evictions": 0,
    }
