"""A whole run in seconds: a random tiny model, few rollouts, and scorers that fail on command."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.engines.protocols import Scorer
from rlhf_core.errors import DataError, RemoteScorerError
from tests.tiny_model import TinyWorld

CALLS = "RLHF_TEST_SCORER_CALLS"
"""Environment variable: a file to which `never_works` adds a letter at every call."""


def settings(world: TinyWorld, home: Path, **sections: Any) -> dict[str, Any]:
    """Two rounds of one iteration; `sections` replace parts."""
    base: dict[str, Any] = {
        "name": "tiny",
        "home": str(home),
        "rounds": 2,
        "iterations_per_round": 1,
        "data": {
            "root": str(world.data),
            "prompts": [{"path": "prompts.jsonl"}],
            "held_out_prompts": [{"path": "prompts_heldout.jsonl"}],
            "ptx": [{"path": "ptx.jsonl"}],
            "ptx_held_out_documents": 4,
        },
        "model": {"policy": str(world.model)},
        "compute": {"device": "cpu", "threads": 1},
        "rollout": {"prompts_per_iteration": 8, "max_new_tokens": 8, "min_response_tokens": 1},
        "reward": {"scorer": "callable", "callable": {"path": "tests.flows.tiny_run:prefer_short"}},
        "ppo": {
            "epochs": 1,
            "actor": {"learning_rate": 1e-3, "warmup_steps": 0},
            "critic": {"learning_rate": 1e-3, "warmup_steps": 0},
        },
        "evaluation": {
            "held_out_rollouts": 8,
            "benchmarks": [{"name": "facts", "format": "hellaswag_jsonl", "path": "hellaswag.jsonl", "items": 12}],
        },
        "recovery": {"retries": 2, "delays_seconds": [0.1]},
    }
    return base | sections


def require_same_numbers(one: Path, other: Path, *, iterations: int) -> None:
    """Two runs' metrics are equal to the bit, but for the rounding noise that one of them measures.

    `engine_mismatch_nats` is the difference of two float32 computations of the same log-probs, some 1e-7 nats. Its last
    bits follow the memory's alignment, which no two processes share; everything that is learned from does not.
    """
    noise = "experience/engine_mismatch_nats"
    left, right = metrics_rows(one), metrics_rows(other)
    assert len(left) == len(right) == iterations
    for mine, theirs in zip(left, right, strict=True):
        assert abs(mine.pop(noise) - theirs.pop(noise)) < 1e-6
        assert mine == theirs


def write_config(folder: Path, content: dict[str, Any]) -> Path:
    """The settings as a YAML file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def scored_by(name: str) -> dict[str, Any]:
    """The `reward` section that scores with a function of this module."""
    return {"scorer": "callable", "callable": {"path": f"tests.flows.tiny_run:{name}"}}


def prefer_short(prompts: list[str], responses: list[str]) -> list[float]:
    """The fewer letters the better."""
    return [-float(len(response)) for response in responses]


def never_works(prompts: list[str], responses: list[str]) -> list[float]:
    """Raises what no retry heals, and leaves a letter in the file that `CALLS` names."""
    with Path(os.environ[CALLS]).open("a") as file:
        file.write("x")
    raise DataError("the scorer's table has no column `score`; add it.")


@dataclass
class FlakyScorer:
    """A scorer some of whose calls fail as those of a remote one do when it does not answer."""

    inner: Scorer
    calls: list[int]
    fails_at: Callable[[int], bool]
    """Whether the call of this number, from 1, fails."""

    def score(self, rows: Sequence[Mapping[str, Any]]) -> list[float]:
        self.calls.append(len(rows))
        if self.fails_at(len(self.calls)):
            raise RemoteScorerError("the scorer did not answer; try again.")
        return self.inner.score(rows)


def metrics_rows(folder: Path) -> list[dict[str, Any]]:
    """The run's metrics, a row for each iteration."""
    return [json.loads(line) for line in (folder / "metrics" / "metrics.jsonl").read_text().splitlines()]
