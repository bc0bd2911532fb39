"""Share of responses that are the same in batches of 1, 7 and 32, in shuffled order and as two ranks' shares (G4).

    python benchmarks/rollout_reproducibility.py --model FOLDER --responses 1000

A response that differs is shown with the distance of its uniform number from the nearest edge between two tokens, at
the first token that differs: a float tie is below 1e-5.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlhf_core.engines.protocols import Generation, GenerationRequest, Sampling
from rlhf_core.engines.transformers_rollout import TransformersRollout
from rlhf_core.models.packed_attention import use_packed_attention


def main() -> None:
    """Print a line for each way of cutting the same requests into batches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--responses", type=int, default=1000)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    use_packed_attention(model)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    requests = make_requests(options.responses)
    order = random.Random(1).sample(range(len(requests)), len(requests))
    shares = [list(range(rank, len(requests), 2)) for rank in range(2)]

    def sampled(groups: Sequence[list[int]], size: int) -> list[Generation]:
        found: dict[int, Generation] = {}
        for group in groups:
            engine = TransformersRollout(model, tokenizer, batch_size=size)
            made = engine.generate([requests[i] for i in group], Sampling(options.new_tokens, 1.0))
            found.update(zip(group, made, strict=True))
        return [found[i] for i in range(len(requests))]

    alone = sampled([list(range(len(requests)))], 1)
    for name, groups, size in (("7", [order], 7), ("32", [order], 32), ("32, two shares", shares, 32)):
        found = sampled(groups, size)
        same = sum(a.response_ids == b.response_ids for a, b in zip(found, alone, strict=True))
        bits = sum(a == b for a, b in zip(found, alone, strict=True))
        print(f"batch size {name}: {same} of {len(requests)} responses as alone, {bits} with the log-probs' bits")
        for request, one, other in zip(requests, found, alone, strict=True):
            if one.response_ids != other.response_ids:
                print(
                    f"  seed {request.seed}: {edge_distance(model, request, one, other):.1e} from an edge", flush=True
                )


def make_requests(count: int) -> list[GenerationRequest]:
    """Prompts of 8 to 48 random tokens, two samples of each."""
    draw = random.Random(0)
    prompts = [tuple(draw.randrange(100, 40_000) for _ in range(draw.randint(8, 48))) for _ in range(-(-count // 2))]
    return [GenerationRequest(prompts[i // 2], seed=i) for i in range(count)]


@torch.no_grad()
def edge_distance(model: Any, request: GenerationRequest, one: Generation, other: Generation) -> float:
    """Distance of the uniform number from the nearest edge where the two responses part."""
    pairs = zip(one.response_ids, other.response_ids, strict=False)
    first = next(i for i, (a, b) in enumerate(pairs) if a != b)
    ids = torch.tensor([[*request.prompt_ids, *one.response_ids[:first]]])
    edges = model(input_ids=ids).logits[0, -1].double().softmax(0).cumsum(0)
    uniform = np.random.Generator(np.random.PCG64(request.seed)).random(first + 1)[first]
    return float((edges - uniform).abs().min())


if __name__ == "__main__":
    main()
