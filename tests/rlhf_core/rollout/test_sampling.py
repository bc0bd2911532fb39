import pandas as pd
import pytest
import torch
from transformers import AutoTokenizer

from rlhf_core.config.models import ModelConfig
from rlhf_core.config.rollout import ExplorationConfig, RolloutConfig
from rlhf_core.data.records import ROLLOUT_SCHEMA
from rlhf_core.engines.non_finite import NonFiniteLogits
from rlhf_core.engines.protocols import Generation
from rlhf_core.engines.transformers_rollout import TransformersRollout
from rlhf_core.errors import NumericsError
from rlhf_core.models.loading import load_policy
from rlhf_core.rollout.sampling import SampleOrigin, Sampler, places_of, rollout_frame
from rlhf_core.seeding import response_seed
from tests.tiny_model import make_tiny_model

ORIGIN = SampleOrigin(run_seed=3, iteration=2, policy_step=1)
CONFIG = RolloutConfig(samples_per_prompt=2, max_new_tokens=6, min_response_tokens=3, batch_size=4)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> TransformersRollout:
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")
    model = load_policy(folder, ModelConfig(policy=str(folder)), torch.device("cpu"))
    return TransformersRollout(model, AutoTokenizer.from_pretrained(folder), batch_size=4)


def sample(engine, frame: pd.DataFrame, config: RolloutConfig = CONFIG, advance=None) -> pd.DataFrame:
    sampler = Sampler(engine, getattr(engine, "tokenizer", None), config, ORIGIN, advance)
    return rollout_frame(sampler.sample(places_of(frame, config.samples_per_prompt), attempt=1))


def prompts() -> pd.DataFrame:
    ids = [[6, 7, 8], [9], [10, 11], [12] * 5, [9]]
    names = ["a", "b", "c", "d", "b"]
    return pd.DataFrame(
        {"prompt_id": names, "domain": "x", "prompt": "?", "prompt_ids": ids, "repeat": [0, 0, 0, 0, 1]}
    )


def test_every_prompt_gets_its_samples_in_order_with_the_seed_of_its_name(engine):
    frame = sample(engine, prompts())
    assert frame.columns.tolist() == ROLLOUT_SCHEMA.names
    names = list(zip(frame["prompt_id"], frame["sample_index"], strict=True))
    assert names == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("c", 0), ("c", 1), ("d", 0), ("d", 1), ("b", 2), ("b", 3)]
    assert frame["seed"].tolist() == [response_seed(3, name, 2, sample) for name, sample in names]
    assert (frame["response_ids"].map(len) == frame["engine_logprobs"].map(len)).all()
    assert set(frame["attempts"]) == {1} and set(frame["policy_step"]) == {1} and set(frame["iteration"]) == {2}
    assert all(row.ending == "truncated" for row in frame.itertuples() if row.finish_reason == "length")


def test_a_subset_of_the_prompts_gives_the_same_responses(engine):
    whole = sample(engine, prompts())
    part = sample(engine, prompts().iloc[[3, 1]])
    key = ["prompt_id", "sample_index"]
    joined = part.merge(whole, on=key, suffixes=("", "_whole"))
    assert len(joined) == 4
    assert joined["response_ids"].tolist() == joined["response_ids_whole"].tolist()


def test_progress_counts_every_response_once(engine):
    seen: list[int] = []
    sample(engine, prompts(), advance=seen.append)
    assert sum(seen) == 10


def test_a_prompt_without_repeat_column_starts_at_sample_zero():
    frame = prompts().drop(columns="repeat").iloc[:2]
    assert [place.sample_index for place in places_of(frame, 3)] == [0, 1, 2, 0, 1, 2]


def test_only_the_first_iterations_sample_with_noise():
    seen: list[float] = []

    class Watched:
        def generate(self, requests, sampling):
            seen.append(sampling.noise_std)
            return [Generation((5,), (-1.0,), "length") for _ in requests]

    class Silent:
        def decode(self, ids, skip_special_tokens):
            return ""

    explored = CONFIG.model_copy(update={"batch_size": 10, "exploration": ExplorationConfig(iterations=2)})
    for config, iteration in ((explored, 1), (explored, 2), (explored, 3), (CONFIG, 1)):
        origin = SampleOrigin(run_seed=3, iteration=iteration, policy_step=1)
        Sampler(Watched(), Silent(), config, origin).sample(places_of(prompts().iloc[:1], 1), attempt=1)
    assert seen == [0.1, 0.1, 0.0, 0.0]


def test_case_N05_broken_logits_are_reported_with_iteration_and_prompt():
    class Broken:
        def generate(self, requests, sampling):
            place = next(i for i, request in enumerate(requests) if request.prompt_ids == (10, 11))
            raise NonFiniteLogits(place, 4)

    with pytest.raises(NumericsError, match=r"iteration 2, prompt 'c', sample 0: the policy of step 1 .* token 4"):
        together = CONFIG.model_copy(update={"batch_size": 10})
        sample(Broken(), prompts(), together)
