"""Whole runs that sample with vLLM."""

import json

from examples.without_prefect import run
from rlhf_core.data.store import read_table
from rlhf_core.quickstart.tokenizer import save_tokenizer
from tests.flows.tiny_run import settings, write_config
from tests.tiny_model import TinyWorld, make_tiny_world
from tests.vllm.policies import random_policy


def rows(home, environment, learning_rate: float) -> list[dict]:
    world = make_tiny_world(home / "world")
    model, tokenizer = random_policy()
    model.save_pretrained(home / "model")
    save_tokenizer(tokenizer, home / "model")
    optimizer = {"learning_rate": learning_rate, "warmup_steps": 0}
    given = settings(
        TinyWorld(world.root, world.data, home / "model"),
        home,
        rounds=1,
        iterations_per_round=4,
        rollout={
            "engine": "vllm",
            "vllm": {"environment": str(environment)},
            "prompts_per_iteration": 8,
            "max_new_tokens": 8,
            "min_response_tokens": 1,
            "temperature": 0.8,
        },
        ppo={
            "epochs": 1,
            "actor": optimizer,
            "critic": optimizer,
            "importance_cap": 2.0,
            "ptx": {"enabled": False},
        },
    )
    run(str(write_config(home, given)), [])
    lines = (home / "tiny" / "metrics" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_run_learns_from_what_vllm_samples_and_the_mismatch_stays_small(environment, tmp_path):
    found = rows(tmp_path, environment, 1e-3)
    assert len(found) == 4
    assert all(row["rollout/canary_nats"] < 1e-3 for row in found)
    assert all(row["experience/engine_mismatch_nats"] < 1e-4 for row in found)
    assert len({row["rollout/response_tokens_mean"] for row in found}) > 1
    stored = read_table(next((tmp_path / "tiny" / "iterations").glob("*/rollouts/rollouts.parquet")))
    assert len(stored) == 8 and stored["engine_logprobs"].map(len).eq(stored["response_ids"].map(len)).all()
    assert len(list((tmp_path / "tiny" / "logs").glob("vllm-*.log"))) == 1, "one start for the whole run"


def test_case_K06_at_learning_rate_0_the_mismatch_stays_at_its_first_value(environment, tmp_path):
    """Case K06 with vLLM."""
    found = [row["experience/engine_mismatch_nats"] for row in rows(tmp_path, environment, 0.0)]
    print(f"mismatch by iteration: {found}")
    assert max(found) < 1e-4 and max(found) < 10 * found[0] + 1e-6
