"""The difference between the engine's log-probs and the trainer's over a run (P1, case K06)."""

import json

from examples.without_prefect import run
from rlhf_core.engines.transformers_rollout import TransformersRollout
from rlhf_core.models.loading import load_policy
from rlhf_core.runtime import Runtime
from tests.flows.tiny_run import settings, write_config
from tests.tiny_model import make_tiny_world


def mismatches(home, world, *, learning_rate: float, iterations: int) -> list[float]:
    optimizer = {"learning_rate": learning_rate, "warmup_steps": 0}
    given = settings(
        world,
        home,
        rounds=1,
        iterations_per_round=iterations,
        ppo={"epochs": 1, "actor": optimizer, "critic": optimizer, "ptx": {"enabled": False}},
    )
    run(str(write_config(home, given)), [])
    lines = (home / "tiny" / "metrics" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["experience/engine_mismatch_nats"] for line in lines]


def test_case_K06_at_learning_rate_0_the_mismatch_stays_at_its_first_value(tmp_path):
    found = mismatches(tmp_path, make_tiny_world(tmp_path / "world"), learning_rate=0.0, iterations=10)
    assert len(found) == 10
    assert max(found) < 1e-6
    assert max(found) < 10 * found[0] + 1e-7


def test_an_engine_that_keeps_old_weights_is_seen_in_it(tmp_path, monkeypatch):
    world = make_tiny_world(tmp_path / "world")

    def forgotten(runtime: Runtime, policy: object) -> TransformersRollout:
        config = runtime.config.model
        return TransformersRollout(load_policy(config.policy, config, runtime.device), runtime.tokenizer, batch_size=8)

    monkeypatch.setattr(Runtime, "rollout_engine", forgotten)
    found = mismatches(tmp_path, world, learning_rate=1e-3, iterations=3)
    assert found[0] < 1e-6 and found[1] > 1e-4 and found[2] > found[1]
