"""What tests of the vLLM engine share: fake servers, a checkpoint's folder, and an engine on them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlhf_core.config.models import ModelConfig
from rlhf_core.config.rollout import RolloutConfig
from rlhf_core.data.refs import CheckpointRef, ControlState
from rlhf_core.data.store import MANIFEST, file_sha256, write_json
from rlhf_core.engines.protocols import GenerationRequest, Sampling
from rlhf_core.engines.vllm_rollout import VllmRollout
from rlhf_core.models.loading import load_tokenizer
from tests.rlhf_core.engines.fake_vllm import FakeVllm
from tests.tiny_model import make_tiny_model

SAMPLING = Sampling(max_new_tokens=8, temperature=1.0)
CANARY = [-1.0 - place / 10 for place in range(16)]


def make_policy(root: Path, *, step: int = 1, canary: Sequence[float] = CANARY) -> CheckpointRef:
    """A checkpoint's folder with a tiny policy and recorded log-probs."""
    path = root / f"step-{step:06d}"
    make_tiny_model(path / "policy", seed=step)
    write_json(path / "state.json", {"micro_inference": list(canary)})
    files = {
        str(file.relative_to(path)): {"bytes": file.stat().st_size, "sha256": file_sha256(file)}
        for file in path.rglob("*")
        if file.is_file()
    }
    write_json(path / MANIFEST, {"files": files})
    return CheckpointRef(step=step, path=path, control=ControlState(kl_coef=0.1, ptx_coef=0.0))


def requests(count: int) -> list[GenerationRequest]:
    return [GenerationRequest((1, 4, 7), seed) for seed in range(count)]


@contextmanager
def engine_on(
    servers: Sequence[FakeVllm], policy: CheckpointRef, *, batch_size: int = 4, **settings: Any
) -> Generator[VllmRollout]:
    """An engine on these servers, not synced yet."""
    vllm = {"urls": [server.url for server in servers], "request_seconds": 20, **settings}
    rollout = RolloutConfig.model_validate({"engine": "vllm", "batch_size": batch_size, "vllm": vllm})
    tokenizer = load_tokenizer(ModelConfig(policy=str(policy.path / "policy")))
    engine = VllmRollout(rollout, tokenizer, policy.path / "logs")
    try:
        yield engine
    finally:
        engine.close()


Misbehaviour = Callable[[FakeVllm, dict[str, Any], dict[str, Any]], Any]


def first_times(count: int, bad: Misbehaviour) -> Misbehaviour:
    """Misbehave on the first `count` tries of each request."""
    tries: dict[int, int] = {}

    def answer(server: FakeVllm, body: dict[str, Any], good: dict[str, Any]) -> Any:
        with server.lock:
            tries[body["seed"]] = tries.get(body["seed"], 0) + 1
            is_bad = tries[body["seed"]] <= count
        return bad(server, body, good) if is_bad else good

    return answer
