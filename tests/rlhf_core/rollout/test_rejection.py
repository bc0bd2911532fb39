from typing import Any

import pytest

from rlhf_core.config.rejection import RejectionConfig
from rlhf_core.config.rollout import RolloutConfig
from rlhf_core.engines.protocols import Generation, GenerationRequest, Sampling
from rlhf_core.rollout.filters import FilterChain, rule_filters
from rlhf_core.rollout.rejection import Rejecter, Sampled, sample_with_rejection
from rlhf_core.rollout.replacement import Replies
from rlhf_core.rollout.sampling import Place, SampleOrigin, Sampler

WORDS = ["good", "bad", "word", "<eos>"]
EOS = 3
REPLIES = ("I would rather not.", "Let us talk of something else.")


class Letters:
    """Decodes token i to the i-th word, and knows no other word."""

    eos_token_id = EOS

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return " ".join(WORDS[i] for i in ids if i != EOS)

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [7] * len(text.split())}


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


def rejecter_for(sampler: Sampler) -> Rejecter:
    filters = FilterChain(rule_filters(sampler.config.rejection))
    return Rejecter(filters, Replies(REPLIES, {}, Letters(), run_seed=0))


def run(sampler: Sampler, wanted: list[Place]) -> Sampled:
    return sample_with_rejection(sampler, wanted, rejecter_for(sampler))


def test_rejected_places_are_drawn_again_with_new_seeds_and_keep_their_order():
    engine = Scripted()
    sampled = run(sampler_of(engine, max_attempts=20), places(12))
    assert sampled.kept["prompt_id"].tolist() == [f"p{i}" for i in range(12)]
    assert (sampled.kept["response"] == "good word").all()
    assert sampled.kept["rejected_by"].isna().all()
    assert len(set(engine.seeds)) == len(engine.seeds) == len(sampled.kept) + len(sampled.rejected)
    tries = sampled.rejected.groupby("prompt_id").size()
    for prompt_id, attempts in zip(sampled.kept["prompt_id"], sampled.kept["attempts"], strict=True):
        assert attempts == tries.get(prompt_id, 0) + 1


def test_attempts_are_bounded_and_every_rejected_sample_is_kept_on_record():
    sampled = run(sampler_of(Scripted(is_always_bad=True), max_attempts=3), places(5))
    assert sampled.kept.empty
    assert sorted(sampled.rejected["attempts"]) == [1] * 5 + [2] * 5 + [3] * 5
    assert sampled.rejection_counts == {"banned": 15}


def test_dropping_draws_once():
    engine = Scripted()
    sampled = run(sampler_of(engine, policy="drop", max_attempts=9), places(12))
    assert len(engine.seeds) == 12
    assert 0 < len(sampled.kept) < 12


def test_a_prompts_response_does_not_depend_on_the_other_prompts():
    whole = run(sampler_of(Scripted()), places(9)).kept.set_index("prompt_id")
    part = run(sampler_of(Scripted()), places(9)[5:]).kept.set_index("prompt_id")
    assert whole.loc[part.index, ["seed", "attempts"]].equals(part[["seed", "attempts"]])


def test_a_response_to_be_penalised_keeps_its_place_its_log_probs_and_its_reason():
    sampled = run(sampler_of(Scripted(), policy="penalise"), places(12))
    assert len(sampled.kept) == 12 and sampled.rejected.empty and sampled.replaced.empty
    bad = sampled.kept["response"] == "bad word"
    assert 0 < bad.sum() < 12
    assert sampled.kept["rejected_by"].notna().tolist() == bad.tolist()
    assert set(sampled.kept.loc[bad, "rejected_by"]) == {"banned"}
    assert sampled.kept["engine_logprobs"].map(list).tolist() == [[-1.0] * 3] * 12
    assert sampled.rejection_counts == {"banned": int(bad.sum())}


@pytest.mark.parametrize("policy", ["resample", "drop", "penalise", "replace"])
def test_case_E05_an_empty_response_in_a_group_leaves_the_others_alone_whatever_the_policy(policy):
    class Half:
        def generate(self, requests, sampling):
            return [Generation((0, 2, EOS) if r.seed % 2 else (), (-1.0,) * 3 * (r.seed % 2), "eos") for r in requests]

    sampled = run(sampler_of(Half(), policy=policy, max_attempts=2), [Place(places(1)[0].prompt, i) for i in range(8)])
    assert 0 < len(sampled.kept) < 8
    assert (sampled.kept["response"] == "good word").all() and sampled.kept["rejected_by"].isna().all()
    assert set(sampled.rejected["response"]) == {""} and set(sampled.rejected["rejected_by"]) == {"too_short"}


def test_a_response_without_a_token_has_nothing_to_penalise():
    class Silent:
        def generate(self, requests, sampling):
            return [Generation((), (), "stop_sequence") for _ in requests]

    sampled = run(sampler_of(Silent(), policy="penalise"), places(3))
    assert sampled.kept.empty and sampled.rejection_counts == {"too_short": 3}


def test_a_replaced_response_leaves_a_safe_reply_and_its_twin_and_no_row_to_learn_from():
    sampled = run(sampler_of(Scripted(), policy="replace"), places(30))
    assert (sampled.kept["response"] == "good word").all()
    assert len(sampled.kept) + len(sampled.replaced) == 30
    assert set(sampled.replaced["chosen"]) == set(REPLIES) and set(sampled.replaced["rejected"]) == {"bad word"}
    for row in sampled.replaced.to_dict("records"):
        prompt = [0] * (int(row["prompt_id"][1:]) + 1)
        assert row["token_ids"] == [*prompt, *[7] * len(row["chosen"].split()), EOS]
    again = run(sampler_of(Scripted(), policy="replace"), places(30)[7:])
    chosen = dict(zip(sampled.replaced["prompt_id"], sampled.replaced["chosen"], strict=True))
    assert all(
        chosen[name] == reply for name, reply in zip(again.replaced["prompt_id"], again.replaced["chosen"], strict=True)
    )


def test_a_filter_may_have_a_policy_of_its_own():
    engine = Scripted(is_always_bad=True)
    sampled = run(sampler_of(engine, policy="resample", policies={"banned": "drop"}), places(4))
    assert len(engine.seeds) == 4 and len(sampled.rejected) == 4
    engine = Scripted(is_always_bad=True)
    sampled = run(sampler_of(engine, policy="drop", policies={"banned": "resample"}, max_attempts=2), places(4))
    assert len(engine.seeds) == 8 and len(sampled.rejected) == 8


def test_the_prompts_own_reply_comes_before_the_list():
    replies = Replies(REPLIES, {"?": "For this prompt."}, Letters(), run_seed=0)
    row = {"iteration": 1, "prompt_id": "p", "sample_index": 0, "domain": "d", "prompt": "?", "prompt_ids": [4]}
    found = replies.replacement({**row, "response": "bad", "rejected_by": "banned"})
    assert (found["chosen"], found["token_ids"]) == ("For this prompt.", [4, 7, 7, 7, EOS])
    other = replies.replacement({**row, "prompt": "other", "response": "bad", "rejected_by": "banned"})
    assert other["chosen"] in REPLIES
