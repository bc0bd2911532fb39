from typing import Any

import pytest

from rlhf_core.config.rollout import RejectionConfig, RolloutConfig
from rlhf_core.engines.protocols import Generation, GenerationRequest, Sampling
from rlhf_core.errors import ConfigError
from rlhf_core.rollout.rejection import ResponseFilter, is_invalid_text, rejection_counts, sample_with_rejection
from rlhf_core.rollout.sampling import Place, SampleOrigin, Sampler

WORDS = ["good", "bad", "word", "<eos>"]
EOS = 3


class Letters:
    """Decodes token i to the i-th word."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return " ".join(WORDS[i] for i in ids if i != EOS)


class Scripted:
    """Writes `good` or `bad` by the parity of the seed, and counts its calls."""

    def __init__(self, is_always_bad: bool = False) -> None:
        self.seeds: list[int] = []
        self.is_always_bad = is_always_bad

    def generate(self, requests: list[GenerationRequest], sampling: Sampling) -> list[Generation]:
        self.seeds += [request.seed for request in requests]
        words = [1 if self.is_always_bad else request.seed % 2 for request in requests]
        return [Generation((word, 2, EOS), (-1.0, -1.0, -1.0), "eos") for word in words]


def sampler_of(engine: Scripted, **rejection: Any) -> Sampler:
    config = RolloutConfig(rejection=RejectionConfig(banned_patterns=("bad",), **rejection), batch_size=4)
    return Sampler(engine, Letters(), config, SampleOrigin(run_seed=0, iteration=1, policy_step=0))


def places(count: int) -> list[Place]:
    prompts = [{"prompt_id": f"p{i}", "domain": "d", "prompt": "?", "prompt_ids": [0] * (i + 1)} for i in range(count)]
    return [Place(prompt, 0) for prompt in prompts]


def row(text: str = "a b c", ids: list[int] | None = None, finish_reason: str = "eos") -> dict[str, Any]:
    return {"response": text, "response_ids": [1, 2, 3, 4] if ids is None else ids, "finish_reason": finish_reason}


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (row(), None),
        (row("say Bad"), None),
        (row("say bad"), "banned"),
        (row("", ids=[9]), "too_short"),
        (row("a", ids=[1, 9]), "too_short"),
        (row("a b", ids=[1, 2], finish_reason="length"), None),
        (row("  \n"), "invalid"),
        (row("����"), "invalid"),
        (row(ids=[1] * 20), "repetitive"),
    ],
)
def test_each_fault_has_its_reason(response, reason):
    config = RejectionConfig(banned_patterns=("bad",), min_response_tokens=2, max_repeated_ngram_fraction=0.5)
    assert ResponseFilter(config).reason(response) == reason


def test_a_limit_of_one_never_calls_a_text_repetitive():
    assert ResponseFilter(RejectionConfig(max_repeated_ngram_fraction=1.0)).reason(row(ids=[1] * 50)) is None


def test_half_a_last_character_is_no_fault_of_a_cut_text():
    assert not is_invalid_text("caf�", is_cut=True)
    assert is_invalid_text("caf�", is_cut=False)
    assert not is_invalid_text("line\n\tline", is_cut=False)


def test_a_pattern_that_is_no_regular_expression_is_named():
    with pytest.raises(ConfigError, match=r"banned_patterns\[1\] = '\('"):
        ResponseFilter(RejectionConfig(banned_patterns=("x", "(")))


def test_rejected_places_are_drawn_again_with_new_seeds_and_keep_their_order():
    engine = Scripted()
    sampled = sample_with_rejection(sampler_of(engine, max_attempts=20), places(12))
    assert sampled.kept["prompt_id"].tolist() == [f"p{i}" for i in range(12)]
    assert (sampled.kept["response"] == "good word").all()
    assert sampled.kept["rejected_by"].isna().all()
    assert len(set(engine.seeds)) == len(engine.seeds) == len(sampled.kept) + len(sampled.rejected)
    tries = sampled.rejected.groupby("prompt_id").size()
    for prompt_id, attempts in zip(sampled.kept["prompt_id"], sampled.kept["attempts"], strict=True):
        assert attempts == tries.get(prompt_id, 0) + 1


def test_attempts_are_bounded_and_every_rejected_sample_is_kept_on_record():
    sampled = sample_with_rejection(sampler_of(Scripted(is_always_bad=True), max_attempts=3), places(5))
    assert sampled.kept.empty
    assert sorted(sampled.rejected["attempts"]) == [1] * 5 + [2] * 5 + [3] * 5
    assert rejection_counts(sampled.rejected) == {"banned": 15}


def test_dropping_draws_once():
    engine = Scripted()
    sampled = sample_with_rejection(sampler_of(engine, policy="drop", max_attempts=9), places(12))
    assert len(engine.seeds) == 12
    assert 0 < len(sampled.kept) < 12


def test_a_prompts_response_does_not_depend_on_the_other_prompts():
    whole = sample_with_rejection(sampler_of(Scripted()), places(9)).kept.set_index("prompt_id")
    part = sample_with_rejection(sampler_of(Scripted()), places(9)[5:]).kept.set_index("prompt_id")
    assert whole.loc[part.index, ["seed", "attempts"]].equals(part[["seed", "attempts"]])
