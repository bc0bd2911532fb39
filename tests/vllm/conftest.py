"""A real vLLM: its environment, and engines on a server that they start. `make vllm` makes what is needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config.rollout import RolloutConfig
from rlhf_core.engines.vllm_environment import python_of
from rlhf_core.engines.vllm_rollout import VllmRollout
from rlhf_core.errors import ConfigError
from tests.vllm.policies import random_policy, stored_policy

ROOT = Path(__file__).parents[2]
ENVIRONMENT = Path(os.environ.get("RLHF_VLLM_ENVIRONMENT", ROOT / ".cache" / "vllm"))
MODEL = Path(os.environ.get("RLHF_VLLM_MODEL", ROOT / "models" / "smollm2-135m-instruct"))

Opened = Callable[..., VllmRollout]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def environment() -> Path:
    try:
        python_of(ENVIRONMENT)
    except ConfigError as error:
        pytest.skip(f"vLLM is not here ({error}). `make vllm` makes it, or set RLHF_VLLM_ENVIRONMENT.")
    return ENVIRONMENT


@pytest.fixture(scope="session")
def real_policy() -> tuple[Any, Any]:
    """SmolLM2-135M where it is there, else a random model."""
    return stored_policy(MODEL) if (MODEL / "config.json").is_file() else random_policy()


@contextmanager
def started(environment: Path, tokenizer: Any, logs: Path, **vllm: Any) -> Generator[VllmRollout]:
    """An engine that starts its own server at its first sync."""
    settings = {"environment": environment, "kv_cache_gib": 1, **vllm}
    rollout = RolloutConfig.model_validate({"engine": "vllm", "batch_size": 32, "vllm": settings})
    engine = VllmRollout(rollout, tokenizer, logs)
    try:
        yield engine
    finally:
        engine.close()
