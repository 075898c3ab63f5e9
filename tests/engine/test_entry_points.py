# SPDX-License-Identifier: Apache-2.0
"""What `LLM` offers beside `generate`: it works, or says that it is not supported."""

import gzip
import re

import pytest
from vllm import SamplingParams
from vllm.config import ProfilerConfig
from vllm.exceptions import ProfilerAlreadyActiveError
from vllm.sampling_params import BeamSearchParams

from tests.engine.engines import draw_prompts, engine, greedy
from vllm_ironwood.profiling import ProfileError, Profiler

VOCAB = 256


@pytest.fixture(scope="module")
def llm(tiny_checkpoint, tmp_path_factory):
    directory = tmp_path_factory.mktemp("profiles")
    profiler = {"profiler": "torch", "torch_profiler_dir": str(directory)}
    with engine(
        tiny_checkpoint,
        max_num_batched_tokens=256,
        max_num_seqs=8,
        max_logprobs=20,
        profiler_config=profiler,
    ) as running:
        running.profile_directory = directory
        yield running


def best_of_all_continuations(llm, prompt, width, length):
    """Beam search by hand: every beam is extended by its likeliest tokens, the best are kept."""
    beams = [((), 0.0)]
    one = SamplingParams(temperature=0, max_tokens=1, logprobs=2 * width)
    for _ in range(length):
        prompts = [{"prompt_token_ids": [*prompt, *tokens]} for tokens, _ in beams]
        extended = []
        for (tokens, total), output in zip(beams, llm.generate(prompts, one, use_tqdm=False)):
            for token, logprob in output.outputs[0].logprobs[0].items():
                extended.append(((*tokens, token), total + logprob.logprob))
        beams = sorted(extended, key=lambda beam: -beam[1])[:width]
    return beams


def test_beam_search_finds_the_likeliest_continuations(llm):
    [prompt] = draw_prompts(1, VOCAB, longest=40, seed=3)
    params = BeamSearchParams(beam_width=3, max_tokens=4, ignore_eos=True)
    [output] = llm.beam_search([{"prompt_token_ids": prompt}], params)
    expected = best_of_all_continuations(llm, prompt, width=3, length=4)
    for sequence, (tokens, logprob) in zip(output.sequences, expected, strict=True):
        assert tuple(sequence.tokens[len(prompt) :]) == tokens
        assert sequence.cum_logprob == pytest.approx(logprob, abs=1e-4)


@pytest.mark.parametrize("name", ["embed", "encode", "classify", "score"])
def test_pooling_is_refused_with_a_reason(llm, name):
    arguments = (["a"], ["b"]) if name == "score" else (["a"],)
    options = {"pooling_task": "token_embed"} if name == "encode" else {}
    with pytest.raises((ValueError, NotImplementedError), match=r"(?i)support|pooling|convert"):
        getattr(llm, name)(*arguments, **options)
    assert llm.generate(["a"], greedy(1), use_tqdm=False)[0].outputs


def test_a_profile_is_written_where_it_was_asked_for(llm):
    llm.start_profile("three-tokens")
    llm.generate(["a"], greedy(3), use_tqdm=False)
    llm.stop_profile()
    written = list((llm.profile_directory / "three-tokens").rglob("*.xplane.pb*"))
    assert len(written) == 1
    data = written[0].read_bytes()
    data = gzip.decompress(data) if written[0].suffix == ".gz" else data
    assert re.search(rb"jit_", data), "the programs that ran are not in the profile"


def test_profiles_out_of_turn_are_refused_and_the_engine_goes_on(llm):
    with pytest.raises(Exception, match=r"(?i)no profil"):
        llm.stop_profile()
    llm.start_profile("one")
    with pytest.raises(ProfilerAlreadyActiveError):
        llm.start_profile("two")
    llm.stop_profile()
    with pytest.raises(ProfileError, match="one exists"):
        llm.start_profile("one")
    assert llm.generate(["a"], greedy(1), use_tqdm=False)[0].outputs


def test_a_second_profile_at_a_time_is_refused(tmp_path):
    profiler = Profiler(ProfilerConfig(profiler="torch", torch_profiler_dir=str(tmp_path)))
    profiler.start()
    with pytest.raises(ProfileError, match=r"already being written to .*profile-1"):
        profiler.start()
    profiler.close()
    profiler.close()
    with pytest.raises(ProfileError, match="no profile is being written"):
        profiler.stop()


def test_profiles_without_a_name_do_not_overwrite_each_other(tmp_path):
    profiler = Profiler(ProfilerConfig(profiler="torch", torch_profiler_dir=str(tmp_path)))
    written = []
    for _ in range(2):
        profiler.start()
        written.append(profiler.stop())
    assert written == [tmp_path / "profile-1", tmp_path / "profile-2"]


def test_a_profile_with_options_that_jax_has_not_is_refused_by_name(tmp_path):
    profiler = Profiler(ProfilerConfig(profiler="torch", torch_profiler_dir=str(tmp_path)))
    with pytest.raises(ProfileError, match="no delay_iterations: leave it out"):
        profiler.start("x", delay_iterations=3, max_iterations=None)
    with pytest.raises(ValueError, match="profile_prefix"):
        profiler.start("../x")


def test_profiles_that_were_not_enabled_are_refused_with_what_enables_them():
    with pytest.raises(ProfileError, match=r"--profiler-config\.profiler=torch"):
        Profiler(ProfilerConfig()).start()
