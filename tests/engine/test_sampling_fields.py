# SPDX-License-Identifier: Apache-2.0
"""Fields of a request through the whole engine: visible, reproducible, and never a compile."""

import jax
import numpy as np
import pytest
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from tests.engine.engines import draw_prompts, engine

VOCAB = 256
PROMPTS = draw_prompts(9, VOCAB, longest=290, seed=2)
REASONING = {"reasoning_start_str": "[", "reasoning_end_str": "so]"}
BEGIN = 58  # the token "["


def ask(llm, prompts, params) -> list[list[int]]:
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False
    )
    return [[t for choice in output.outputs for t in choice.token_ids] for output in outputs]


@pytest.fixture(scope="module", params=[True, False], ids=["async", "sync"])
def llm(request, tiny_checkpoint):
    with engine(
        tiny_checkpoint,
        max_num_batched_tokens=129,
        max_num_seqs=8,
        async_scheduling=request.param,
        reasoning_config=REASONING,
    ) as running:
        yield running


def greedy(**fields) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 24, "ignore_eos": True, **fields})


def test_g3_every_field_changes_the_answer_as_it_says(llm):
    """Acceptance row G3."""
    prompt = PROMPTS[3]
    [plain] = ask(llm, [prompt], greedy())
    first = plain[0]

    [barred] = ask(llm, [prompt], greedy(logit_bias={first: -100}))
    assert first not in barred
    [forced] = ask(llm, [prompt], greedy(logit_bias={77: 100}))
    assert set(forced) == {77}
    [allowed] = ask(llm, [prompt], greedy(allowed_token_ids=[10, 20, 30]))
    assert set(allowed) <= {10, 20, 30}
    few = {"allowed_token_ids": list(range(100, 124)), "max_tokens": 20}
    [repeats] = ask(llm, [prompt], greedy(**few))
    for penalty in ("presence_penalty", "frequency_penalty"):
        [answer] = ask(llm, [prompt], greedy(**few, **{penalty: 2.0}))
        assert len(set(answer)) > len(set(repeats))
    half_of_them = [*prompt, *range(100, 112)]
    [without] = ask(llm, [half_of_them], greedy(**few))
    [answer] = ask(llm, [half_of_them], greedy(**few, repetition_penalty=9.0))
    assert len(set(answer) - set(half_of_them)) > len(set(without) - set(half_of_them))
    # A token of a set of two comes in turns, once its use outweighs what the model prefers.
    turns = greedy(allowed_token_ids=[10, 20], frequency_penalty=2.0, max_tokens=40)
    [in_turns] = ask(llm, [prompt], turns)
    counts = np.bincount(in_turns, minlength=21)
    assert counts[10] > 5 < counts[20]


def test_min_tokens_bars_the_stop_until_it_is_reached(llm):
    prompt = PROMPTS[2]
    [plain] = ask(llm, [prompt], greedy())
    stop = {"stop_token_ids": [plain[0]], "ignore_eos": False}
    [stopped] = ask(llm, [prompt], greedy(**stop))
    assert len(stopped) == 1
    [later] = ask(llm, [prompt], greedy(**stop, min_tokens=5, logit_bias={plain[0]: 50}))
    assert len(later) == 6
    assert later[-1] == plain[0]
    assert plain[0] not in later[:-1]


def test_min_p_of_one_leaves_only_the_likeliest_token(llm):
    [plain] = ask(llm, [PROMPTS[5]], greedy())
    params = SamplingParams(temperature=2.0, min_p=1.0, max_tokens=24, ignore_eos=True)
    assert ask(llm, [PROMPTS[5]], params) == [plain]


def test_bad_words_never_appear(llm):
    tokenizer = llm.get_tokenizer()
    [plain] = ask(llm, [PROMPTS[4]], greedy())
    words = {tokenizer.decode([token]): token for token in plain}
    words = {
        word: token
        for word, token in words.items()
        if word.strip() and tokenizer.encode(word, add_special_tokens=False) == [token]
    }
    assert words, "no token of the answer is a word of its own"
    [without] = ask(llm, [PROMPTS[4]], greedy(bad_words=list(words)))
    assert not set(words.values()) & set(without)


def test_reasoning_is_ended_after_its_budget(llm):
    encode = llm.get_tokenizer().encode
    forced = encode(REASONING["reasoning_end_str"], add_special_tokens=False)
    assert encode(REASONING["reasoning_start_str"], add_special_tokens=False) == [BEGIN]
    assert len(forced) > 1
    endless = {"logit_bias": dict.fromkeys(forced, -100.0)}
    reasoning = [[*prompt, BEGIN] for prompt in PROMPTS[:4]]
    for answer in ask(llm, reasoning, greedy(thinking_token_budget=5, **endless)):
        assert answer[5 : 5 + len(forced)] == forced
        assert not set(forced) & set(answer[:5] + answer[5 + len(forced) :])
    for answer in ask(llm, reasoning, greedy(**endless)):
        assert not set(forced) & set(answer)
    endless["logit_bias"][BEGIN] = -100.0
    not_begun = [[token for token in prompt if token != BEGIN] for prompt in PROMPTS[:4]]
    for answer in ask(llm, not_begun, greedy(thinking_token_budget=0, **endless)):
        assert not set(forced) & set(answer)


def random_params(rng: np.random.Generator) -> SamplingParams:
    def maybe(*values):
        return values[int(rng.integers(len(values)))]

    temperature = maybe(0, 0.7, 1.0, 2.0)
    return SamplingParams(
        temperature=temperature,
        top_k=maybe(-1, 1, 20, 300),
        top_p=maybe(1.0, 0.9, 1e-6),
        min_p=maybe(0.0, 0.1),
        seed=int(rng.integers(2**31)),
        presence_penalty=maybe(0.0, 1.0, -1.0),
        frequency_penalty=maybe(0.0, 0.5),
        repetition_penalty=maybe(1.0, 1.3),
        logit_bias=maybe(None, {5: 10.0, 6: -100.0}),
        allowed_token_ids=maybe(None, None, list(range(40, 90))),
        min_tokens=maybe(0, 3),
        logprobs=maybe(None, 0, 1, 5, 20),
        prompt_logprobs=maybe(None, None, None, 2),
        thinking_token_budget=maybe(None, 0, 4),
        n=maybe(1, 1, 2) if temperature else 1,
        max_tokens=int(rng.integers(3, 12)),
    )


def fully_random_params(rng: np.random.Generator, tokenizer) -> SamplingParams:
    """With the fields too that not every other field goes with."""
    params = random_params(rng)
    kind = rng.integers(4)
    if kind == 0:
        params.allowed_token_ids = None
        params.structured_outputs = StructuredOutputsParams(regex="[ab]{2,9}")
    elif kind == 1:
        params.logprobs, params.logprob_token_ids = None, rng.integers(0, VOCAB, 3).tolist()
    elif kind == 2:
        params.bad_words = [tokenizer.decode([int(t)]) for t in rng.integers(20, 90, 3)]
    return params


def without_compiling(run, *args):
    """Call ``run``; XLA compiles nothing meanwhile, not even a small operation."""
    compiled = []

    def listen(event: str, seconds: float, **_) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        result = run(*args)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not compiled
    return result


def test_500_random_mixes_compile_nothing_and_do_not_touch_each_other(llm):
    """`engine` forbids recompilation; each answer is the same in another batch and order."""
    rng = np.random.default_rng(3)
    prompts = draw_prompts(500, VOCAB, longest=40, seed=12)
    for prompt in prompts[::3]:
        prompt.append(BEGIN)
    params = [fully_random_params(rng, llm.get_tokenizer()) for _ in prompts]
    together = without_compiling(ask, llm, prompts, params)
    order = rng.permutation(len(prompts))[:60]
    again = ask(llm, [prompts[i] for i in order], [params[i] for i in order])
    assert again == [together[i] for i in order]


def test_preempted_requests_keep_their_rules(llm, tiny_checkpoint):
    """Counts, recent words and prompts are rebuilt when a request resumes."""
    rng = np.random.default_rng(8)
    params = [random_params(rng) for _ in PROMPTS]
    for each in params:
        each.max_tokens, each.min_tokens, each.ignore_eos = 48, 48, True
        each.frequency_penalty = 0.7
        each.repetition_penalty = 1.2
        each.logprobs = each.prompt_logprobs = None
        each.n = 1
    prompts = [*PROMPTS[:4], *([*prompt, BEGIN] for prompt in PROMPTS[4:])]
    alone = [ask(llm, [prompt], each)[0] for prompt, each in zip(prompts, params, strict=True)]
    with engine(
        tiny_checkpoint,
        max_num_batched_tokens=129,
        max_num_seqs=8,
        num_gpu_blocks_override=6,
        reasoning_config=REASONING,
        async_scheduling=llm.llm_engine.vllm_config.scheduler_config.async_scheduling,
    ) as starving:
        assert ask(starving, prompts, params) == alone
        [preemptions] = [m for m in starving.get_metrics() if m.name == "vllm:num_preemptions"]
        assert preemptions.value > 0


def one(llm, **fields):
    [output] = llm.generate(
        [{"prompt_token_ids": PROMPTS[3]}], SamplingParams(**fields), use_tqdm=False
    )
    return output


def test_fields_of_the_front_end_and_the_scheduler_act_as_they_say(llm):
    plain = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
    answer = one(llm, **plain).outputs[0]
    tokens, text = list(answer.token_ids), answer.text
    assert len(tokens) == 24

    assert len(one(llm, **{**plain, "max_tokens": 5}).outputs[0].token_ids) == 5
    stopped = one(llm, **plain, stop_token_ids=[tokens[4]]).outputs[0]
    assert (list(stopped.token_ids), stopped.stop_reason) == (tokens[:5], tokens[4])
    word = text[len(text) // 2 : len(text) // 2 + 3]
    stopped = one(llm, **plain, stop=[word]).outputs[0]
    assert text.startswith(stopped.text)
    assert word not in stopped.text
    stopped = one(llm, **plain, stop=[word], include_stop_str_in_output=True).outputs[0]
    assert stopped.text.endswith(word)
    assert one(llm, **plain, detokenize=False).outputs[0].text == ""
    eos = llm.get_tokenizer().eos_token_id
    end = {"logit_bias": {eos: 100}, "temperature": 0, "max_tokens": 4}
    assert len(one(llm, **end).outputs[0].token_ids) == 1
    assert len(one(llm, **end, ignore_eos=True).outputs[0].token_ids) == 4
    shown = one(llm, **end, ignore_eos=True, skip_special_tokens=False).outputs[0].text
    hidden = one(llm, **end, ignore_eos=True, skip_special_tokens=True).outputs[0].text
    assert shown != hidden
    several = one(llm, n=3, temperature=1.5, seed=1, max_tokens=12).outputs
    assert len({tuple(o.token_ids) for o in several}) == 3
    flat = one(llm, **plain, logprobs=2, flat_logprobs=True).outputs[0].logprobs
    nested = one(llm, **plain, logprobs=2).outputs[0].logprobs
    assert [set(position) for position in flat] == [set(position) for position in nested]


def test_a_seed_draws_the_same_and_another_draws_differently(llm):
    def draw(seed):
        return list(one(llm, temperature=1.5, seed=seed, max_tokens=20).outputs[0].token_ids)

    assert draw(5) == draw(5) != draw(6)


def test_g1_a_temperature_of_one_draws_many_tokens_and_top_k_limits_them(llm):
    """Acceptance row G1: top_k of -1, 0, all and more than all are no limit."""
    vocab = len(llm.get_tokenizer())
    for top_k, at_least, at_most in ((-1, 50, 200), (0, 50, 200), (vocab, 50, 200), (2, 2, 2)):
        params = SamplingParams(n=200, temperature=2.0, top_k=top_k, seed=1, max_tokens=1)
        [output] = llm.generate([{"prompt_token_ids": PROMPTS[3]}], params, use_tqdm=False)
        distinct = {o.token_ids[0] for o in output.outputs}
        assert at_least <= len(distinct) <= at_most, top_k
