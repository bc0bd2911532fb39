"""G3: whatever the filters and policies, a rejected text is not in the batch, and a replacement never is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.config.rejection import RejectionConfig
from rlhf_core.config.reward import RewardConfig
from rlhf_core.config.rollout import RolloutConfig
from rlhf_core.data.collate import rollout_tensors
from rlhf_core.engines.protocols import Generation
from rlhf_core.errors import CannotLearn
from rlhf_core.rewards.sequence_rewards import ResponseTexts, sequence_rewards
from rlhf_core.rollout.dynamic_sampling import sample_informative_groups
from rlhf_core.rollout.filters import FilterChain, RewardFilter, SafetyFilter, rule_filters
from rlhf_core.rollout.rejection import Rejecter, Sampled, sample_with_rejection
from rlhf_core.rollout.replacement import Replies
from rlhf_core.rollout.sampling import Place, SampleOrigin, Sampler

WORDS = ("good", "bad", "rude", "fine", "kind", "dull", "\n")
EOS, REPLY_ID = 50, 99
REPLY = "a reply that no policy writes"
POLICIES = ("resample", "drop", "penalise", "replace")
REASONS = ("banned", "banned_word", "too_short", "invalid", "repetitive", "unsafe", "low_reward")


class Tokenizer:
    eos_token_id = EOS

    def decode(self, ids, skip_special_tokens=True) -> str:
        return " ".join(WORDS[i] for i in ids if i != EOS)

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [REPLY_ID] * 3}


class Dice:
    """Writes words by the seed alone; log-probs are the seed's too, so that a row can be told from another."""

    def generate(self, requests, sampling):
        return [self._response(request.seed) for request in requests]

    def _response(self, seed: int) -> Generation:
        length, seed = seed % 4, seed // 4
        ids = tuple(seed // 7**place % len(WORDS) for place in range(length)) * (1 + 2 * (seed % 3 == 0))
        ids = ids if seed % 5 == 0 else (*ids, EOS)
        logprob = -(1 + seed % 997) / 100
        return Generation(ids, (logprob,) * len(ids), "length" if seed % 5 == 0 else "eos")


class Judge:
    def unsafe_probabilities(self, prompts, responses):
        return [0.9 if "rude" in text else 0.1 for text in responses]


class Scorer:
    def score(self, rows):
        return [-5.0 if "dull" in row["response"] else float(len(row["response"])) for row in rows]


rejections = st.builds(
    RejectionConfig,
    policy=st.sampled_from(POLICIES),
    policies=st.dictionaries(st.sampled_from(REASONS), st.sampled_from(POLICIES), max_size=4),
    max_attempts=st.integers(1, 3),
    banned_patterns=st.sampled_from([(), ("ba+d",)]),
    banned_words=st.sampled_from([(), ("fine kind",)]),
    min_response_tokens=st.integers(0, 2),
    max_repeated_ngram_fraction=st.sampled_from([0.3, 1.0]),
)


def sampled(rejection: RejectionConfig, has_models: bool, is_dynamic: bool, seed: int) -> tuple[Sampled, FilterChain]:
    filters = rule_filters(rejection)
    if has_models:
        filters += [SafetyFilter(Judge(), 0.5), RewardFilter(Scorer(), 0.0, scores_truncated=True)]
    chain = FilterChain(filters)
    config = RolloutConfig(rejection=rejection, batch_size=5)
    sampler = Sampler(Dice(), Tokenizer(), config, SampleOrigin(seed, iteration=1, policy_step=0))
    prompts = [{"prompt_id": f"p{i}", "domain": "d", "prompt": "?", "prompt_ids": [1]} for i in range(5)]
    places = [Place(prompt, sample) for prompt in prompts for sample in range(3)]
    rejecter = Rejecter(chain, Replies((REPLY,), {}, Tokenizer(), seed))
    if is_dynamic:
        rows_score = lambda rows: Scorer().score(rows.to_dict("records"))  # noqa: E731
        try:
            return sample_informative_groups(sampler, places, rejecter, rows_score, max_attempts=2)[0], chain
        except CannotLearn:
            return sample_with_rejection(sampler, places, rejecter), chain
    return sample_with_rejection(sampler, places, rejecter), chain


@settings(max_examples=150)
@given(rejections, st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_G3_a_rejected_text_reaches_the_update_only_as_a_penalised_one_and_a_reply_never(
    rejection, has_models, is_dynamic, seed
):
    found, chain = sampled(rejection, has_models, is_dynamic, seed)
    if found.kept.empty:
        return
    rows = found.kept.to_dict("records")
    reasons = chain.reasons(rows)
    for row, reason in zip(rows, reasons, strict=True):
        if reason is None:
            assert not isinstance(row["rejected_by"], str)
        else:
            assert rejection.policy_for(reason) == "penalise" and row["rejected_by"] == reason
        assert REPLY_ID not in row["response_ids"] and row["response"] != REPLY
        own = Dice()._response(row["seed"])
        assert tuple(row["response_ids"]) == own.response_ids and tuple(row["engine_logprobs"]) == own.logprobs
    accepted = {row["response"] for row, reason in zip(rows, reasons, strict=True) if reason is None}
    assert not accepted & set(found.rejected["response"])
    names = [(row["prompt_id"], row["sample_index"]) for row in rows]
    assert len(set(names)) == len(names)
    require_batch_of_what_was_kept(found, [reason is not None for reason in reasons])
    twins = set(zip(found.replaced["rejected"], found.replaced["rejected_by"], strict=True))
    assert twins <= set(zip(found.rejected["response"], found.rejected["rejected_by"], strict=True))
    assert set(found.replaced["chosen"]) <= {REPLY}
    assert all(rejection.policy_for(reason) == "replace" for reason in found.replaced["rejected_by"])


def require_batch_of_what_was_kept(found: Sampled, penalised: list[bool]) -> None:
    """The tensors of the update hold these rows and no others, and the penalty is on the penalised ones alone."""
    rows = found.kept.to_dict("records")
    tensors = rollout_tensors(found.kept, pad_id=77)
    ids = [row[mask].tolist() for row, mask in zip(tensors.response_ids, tensors.response_mask, strict=True)]
    assert ids == [list(row["response_ids"]) for row in rows]
    assert not (tensors.response_ids == REPLY_ID).any()
    scores, endings = Scorer().score(rows), [row["ending"] for row in rows]
    texts = ResponseTexts(found.kept["prompt_id"].tolist(), found.kept["response"].tolist(), [False] * len(rows))
    flags = [isinstance(row["rejected_by"], str) for row in rows]
    plain, now = (
        sequence_rewards(scores, endings, RewardConfig(), texts=each)
        for each in (texts, replace(texts, penalised=flags))
    )
    gaps = torch.tensor(now.rewards) - torch.tensor(plain.rewards)
    torch.testing.assert_close(gaps, torch.tensor(penalised) * -10.0, atol=1e-5, rtol=0)


def test_the_property_meets_every_policy_and_reason():
    seen: dict[str, set[str]] = {policy: set() for policy in POLICIES}
    for policy in POLICIES:
        rejection = RejectionConfig(
            policy=policy,
            banned_patterns=("ba+d",),
            banned_words=("fine kind",),
            min_response_tokens=1,
            max_repeated_ngram_fraction=0.3,
        )
        for seed in range(30):
            seen[policy] |= set(sampled(rejection, True, False, seed)[0].rejection_counts)
    assert all(found == set(REASONS) for found in seen.values())
