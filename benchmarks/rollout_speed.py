"""Tokens a second of this project's rollout engine against `model.generate`, at the same prompts and lengths.

    python benchmarks/rollout_speed.py
    python benchmarks/rollout_speed.py --model FOLDER --prompts 32 --alternations 1 --threads 1

Each response's length is drawn once and holds for both sides: `generate` cannot let a row go before the last one is
done and pays for it, this engine drops it. Lengths are forced from outside, here alone: by a logits processor there, by
a subclass that says when a row is done here. Both sides use one set of weights and take turns. Beside wall-clock time
stands the processor time, which other jobs on the machine disturb less.

The limit is arithmetic: the prompts' products at the measured speed of large products, then for each step the larger of
its products at the measured speed of products with that many rows and the reading of all weights at the measured memory
bandwidth. It leaves out attention, sampling and everything else.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rlhf_core.engines.packed_products import packed_products  # noqa: E402
from rlhf_core.engines.protocols import GenerationRequest, Sampling  # noqa: E402
from rlhf_core.engines.transformers_rollout import TransformersRollout  # noqa: E402
from rlhf_core.models.packed_attention import use_packed_attention  # noqa: E402
from rlhf_core.numerics.head_matmul import cpu_multiplies_bfloat16  # noqa: E402

SHAPE = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=2048,
    tie_word_embeddings=True,
)
"""SmolLM2-135M's."""
EOS = 2
ASKED_RATIO = 1.5


@dataclass(frozen=True)
class Work:
    """What both sides do."""

    prompts: list[tuple[int, ...]]
    lengths: list[int]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


@dataclass(frozen=True)
class Run:
    """One side's run."""

    seconds: float
    processor_seconds: float


class ForcedLengths(TransformersRollout):
    """Ends each row at its wanted length and nowhere else."""

    lengths: list[int]

    def _take(self, draft: Any, token: int, logprob: float, stops: Any) -> None:
        super()._take(draft, token, logprob, stops)
        draft.is_done = len(draft.response_ids) >= self.lengths[draft.index]


class EndAtLength(LogitsProcessor):
    """The same for `generate`: EOS is impossible before a row's last token and certain there."""

    def __init__(self, prompt_width: int, lengths: Sequence[int]) -> None:
        self.prompt_width = prompt_width
        self.last = torch.tensor(lengths) - 1

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        is_last = self.last == input_ids.shape[1] - self.prompt_width
        scores[:, EOS] = -torch.inf
        scores[is_last] = -torch.inf
        scores[is_last, EOS] = 0.0
        return scores


def main() -> None:
    """Alternate both sides and print a line for each number of prompts and dtype."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    print(
        f"{options.model or 'random weights, SmolLM2-135M shape'}; up to {options.new_tokens} new tokens, prompts of "
        f"{options.prompt_tokens[0]} to {options.prompt_tokens[1]} tokens; {options.threads} threads, "
        f"{options.alternations} alternations (medians), torch {torch.__version__}\n"
    )
    print("| dtype | prompts | plain tokens/s | ours | ours / plain | by processor time | limit | ours / limit |")
    print("|---|---|---|---|---|---|---|---|")
    for dtype in ("float32", "bfloat16") if cpu_multiplies_bfloat16() else ("float32",):
        policy = load(options.model)
        plain = policy if dtype == "float32" else load(options.model).to(torch.bfloat16)
        for count in options.prompts:
            print(line(policy, plain, dtype, make_work(count, options), options.alternations), flush=True)
    print(f"\nAsked of ours / plain: at least {ASKED_RATIO}.")
    if not cpu_multiplies_bfloat16():
        print("No bfloat16: this processor only emulates it.")


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder; random weights of SmolLM2-135M's shape without it")
    parser.add_argument("--prompts", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--prompt-tokens", type=int, nargs=2, default=[16, 96], metavar=("LEAST", "MOST"))
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--alternations", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def load(folder: str | None) -> Any:
    """The model, with an attention that leaves plain calls as they are."""
    torch.manual_seed(0)
    if folder is None:
        model: Any = LlamaForCausalLM(SHAPE)
    else:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    use_packed_attention(model)
    return model.eval()


def make_work(count: int, options: argparse.Namespace) -> Work:
    """Prompts of random tokens; the lengths are uniform from an eighth of the limit on, one of them the limit."""
    draw = random.Random(count)
    vocab = SHAPE.vocab_size
    prompts = [
        tuple(draw.randrange(5, vocab) for _ in range(draw.randint(*options.prompt_tokens))) for _ in range(count)
    ]
    lengths = [draw.randint(max(1, options.new_tokens // 8), options.new_tokens) for _ in range(count)]
    return Work(prompts, [options.new_tokens, *lengths[1:]])


def line(policy: Any, plain: Any, dtype: str, work: Work, alternations: int) -> str:
    """Measure one row of the table."""
    sides: dict[str, Callable[[], None]] = {
        "plain": lambda: run_plain(plain, work),
        "ours": lambda: run_ours(policy, dtype, work),
    }
    runs: dict[str, list[Run]] = {side: [] for side in sides}
    for side in sides.values():
        side()  # libraries make their kernels at the first call
    for _ in range(alternations):
        for name, side in sides.items():
            runs[name].append(timed(side))
    speed = {name: work.tokens / statistics.median(run.seconds for run in found) for name, found in runs.items()}
    ratio, by_processor = (
        statistics.median(
            getattr(theirs, clock) / getattr(mine, clock)
            for theirs, mine in zip(runs["plain"], runs["ours"], strict=True)
        )
        for clock in ("seconds", "processor_seconds")
    )
    limit = work.tokens / limit_seconds(policy, work) if dtype == "float32" else float("nan")
    return (
        f"| {dtype} | {len(work.prompts)} | {speed['plain']:.0f} | {speed['ours']:.0f} | {ratio:.2f} | "
        f"{by_processor:.2f} | {limit:.0f} | {speed['ours'] / limit:.2f} |"
    )


def timed(work: Callable[[], None]) -> Run:
    """Run it once."""
    seconds, processor = time.perf_counter(), time.process_time()
    work()
    return Run(time.perf_counter() - seconds, time.process_time() - processor)


def run_plain(model: Any, work: Work) -> None:
    """`generate` on a left-padded batch."""
    width = max(len(prompt) for prompt in work.prompts)
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in work.prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in work.prompts])
    with torch.no_grad():
        found = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max(work.lengths),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            use_cache=True,
            eos_token_id=EOS,
            pad_token_id=0,
            logits_processor=LogitsProcessorList([EndAtLength(width, work.lengths)]),
        )
    ended = (found[:, width:] == EOS).int().argmax(dim=1) + 1
    check(ended.tolist() == work.lengths, "generate did not keep to the lengths")


def run_ours(model: Any, dtype: str, work: Work) -> None:
    """This project's engine on the same prompts, all in one batch."""
    tokenizer: Any = SimpleNamespace(eos_token_id=EOS, all_special_ids=[EOS], added_tokens_decoder={})
    autocast = "bfloat16" if dtype == "bfloat16" else "off"
    engine = ForcedLengths(model, tokenizer, batch_size=len(work.prompts), autocast=autocast)
    engine.eos_ids, engine.lengths = frozenset(), work.lengths
    requests = [GenerationRequest(prompt, seed=number) for number, prompt in enumerate(work.prompts)]
    found = engine.generate(requests, Sampling(max_new_tokens=max(work.lengths), temperature=1.0))
    check([len(one.response_ids) for one in found] == work.lengths, "the engine did not keep to the lengths")


def check(is_right: bool, otherwise: str) -> None:
    """Two sides that do different things have no times to compare."""
    if not is_right:
        raise SystemExit(otherwise)


def limit_seconds(model: Any, work: Work) -> float:
    """What the products alone must take; see the top."""
    head = model.get_output_embeddings().weight.numel()
    body = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear)) - head
    weights_seconds = 4 * (body + head) / memory_bandwidth()
    prompt_tokens = sum(len(prompt) for prompt in work.prompts)
    total = 2.0 * (body * prompt_tokens + head * len(work.prompts)) / product_speed(prompt_tokens)
    speeds: dict[int, float] = {}
    for step in range(1, max(work.lengths)):
        rows = sum(length > step for length in work.lengths)
        group = -(-rows // 8) * 8
        speeds[group] = speeds.get(group) or product_speed(group)
        total += max(2.0 * (body + head) * rows / speeds[group], weights_seconds)
    return total


def product_speed(rows: int) -> float:
    """Floating-point operations a second of a product with weights too large for the cache; plain or packed."""
    model = torch.nn.Sequential(*(torch.nn.Linear(576, 1536, bias=False) for _ in range(24)))
    inputs = torch.randn(rows, 576)

    def seconds() -> float:
        for layer in model:
            layer(inputs)
        started = time.perf_counter()
        for layer in model:
            layer(inputs)
        return time.perf_counter() - started

    with torch.no_grad():
        fastest = min(seconds() for _ in range(3))
        with packed_products(model):
            fastest = min(fastest, *(seconds() for _ in range(3)))
    return 2.0 * 24 * 576 * 1536 * rows / fastest


def memory_bandwidth() -> float:
    """Bytes read in a second, from an array that no cache holds."""
    held = torch.ones(2**26)
    held.sum()
    started = time.perf_counter()
    for _ in range(3):
        held.sum()
    return 3 * 4 * 2**26 / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
