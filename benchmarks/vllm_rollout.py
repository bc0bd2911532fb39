"""Our vLLM engine against vLLM's own completions endpoint driven plainly, with the same prompts, on the same server.

Usage: python benchmarks/vllm_rollout.py MODEL_FOLDER [--environment DIR] [--requests 64] [--tokens 64] [--rounds 5]

Prints tokens a second of each, and their ratio: what our requests' checks, thread pool and canary cost. The rounds
alternate, and the median of their ratios counts, so that a drift of the machine hits both. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_core.config.rollout import RolloutConfig
from rlhf_core.data.refs import CheckpointRef, ControlState
from rlhf_core.data.store import MANIFEST, file_sha256, write_json
from rlhf_core.engines.protocols import GenerationRequest, Sampling
from rlhf_core.engines.vllm_rollout import VllmRollout
from rlhf_core.models.scoring import micro_inference

TEXT = "Tell me what you know about the sea, the mountains and the towns between them, and why people go there"


def checkpoint(model_folder: Path, root: Path) -> CheckpointRef:
    """A checkpoint as far as the engine reads it, with the model's own weights."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    model.save_pretrained(root / "policy")
    AutoTokenizer.from_pretrained(model_folder).save_pretrained(root / "policy")
    write_json(root / "state.json", {"micro_inference": micro_inference(model)})
    files = {f"policy/{path.name}": {"sha256": file_sha256(path)} for path in (root / "policy").iterdir()}
    write_json(root / MANIFEST, {"files": files})
    return CheckpointRef(step=0, path=root, control=ControlState(kl_coef=0.1, ptx_coef=0.0))


def ragged_requests(tokenizer: AutoTokenizer, count: int) -> list[GenerationRequest]:
    """Prompts of different lengths."""
    ids = tokenizer(TEXT)["input_ids"]
    return [GenerationRequest(tuple(ids[: 4 + place % (len(ids) - 4)]), place) for place in range(count)]


def plainly(url: str, requests: Sequence[GenerationRequest], tokens: int, threads: int) -> int:
    """Tokens of the responses, asked for with as little as the endpoint needs."""
    with httpx.Client(base_url=url, timeout=600, trust_env=False) as client, ThreadPoolExecutor(threads) as executor:

        def ask(request: GenerationRequest) -> int:
            body = {"model": "policy", "prompt": list(request.prompt_ids), "max_tokens": tokens, "temperature": 1.0}
            answer = client.post("/v1/completions", json=body | {"logprobs": 0, "seed": request.seed})
            return int(answer.raise_for_status().json()["usage"]["completion_tokens"])

        return sum(executor.map(ask, requests))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--environment", type=Path)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        policy = checkpoint(given.model, Path(scratch))
        tokenizer = AutoTokenizer.from_pretrained(given.model)
        rollout = RolloutConfig.model_validate(
            {"engine": "vllm", "batch_size": 32, "vllm": {"environment": given.environment}}
        )
        engine = VllmRollout(rollout, tokenizer, Path(scratch) / "logs")
        try:
            engine.sync(policy)
            compare(engine, ragged_requests(tokenizer, given.requests), given.tokens, given.rounds)
        finally:
            engine.close()


def compare(engine: VllmRollout, requests: Sequence[GenerationRequest], tokens: int, rounds: int) -> None:
    """Print both rates, round by round, and the median ratio."""
    url = engine.urls[0]
    engine.generate(requests, Sampling(4, 1.0))  # the first requests warm both up
    ratios: list[float] = []
    for number in range(rounds):
        started = time.perf_counter()
        plain = plainly(url, requests, tokens, 32) / (time.perf_counter() - started)
        started = time.perf_counter()
        found = engine.generate(requests, Sampling(tokens, 1.0))
        ours = sum(len(one.response_ids) for one in found) / (time.perf_counter() - started)
        ratios.append(ours / plain)
        print(f"round {number + 1}: {ours:.0f} tokens/s here, {plain:.0f} plainly, ratio {ours / plain:.3f}")
    print(f"median ratio {statistics.median(ratios):.3f} (target: 0.9 or more)")


if __name__ == "__main__":
    main()
