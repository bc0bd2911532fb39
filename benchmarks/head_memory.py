"""Peak extra memory and time of log-probs, entropy and exact KL from hidden states, against the full logits.

    python benchmarks/head_memory.py
    python benchmarks/head_memory.py --tokens 256 --alternations 1

Each trial is a process of its own; both sides alternate. `compare` is what is asked of: at 4096 tokens × 49152
vocabulary at most 300 MiB above the inputs, in at most 1.3 × the time. `logprobs` is its half without a reference.
`train` adds the backward pass, which needs one buffer of tokens × vocabulary. Linux only: the peak is the kernel's
high-water mark of the resident set.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rlhf_core.numerics.kl import compare_with_reference  # noqa: E402
from rlhf_core.numerics.logprobs import logprobs_from_hidden  # noqa: E402

WORKS = ("compare", "logprobs", "train")
SIDES = ("plain", "ours")
ASKED_MIB, ASKED_RATIO = 300.0, 1.3
Trial = dict[str, float]


def main() -> None:
    """Run one trial, or alternate trials and print the table."""
    options = parse_options()
    if options.trial:
        print(json.dumps(run_trial(*options.trial, options)))
        return
    print(
        f"{options.tokens} tokens × {options.vocab} vocabulary, hidden {options.hidden}, float32, {options.threads} "
        f"threads, medians of {options.alternations} alternations, torch {torch.__version__}\n"
    )
    print("| work | extra MiB plain | ours | seconds plain | ours | ours / plain |")
    print("|---|---|---|---|---|---|")
    for work in WORKS:
        trials: dict[str, list[Trial]] = {side: [] for side in SIDES}
        for _ in range(options.alternations):
            for side in SIDES:
                trials[side].append(spawn_trial(work, side, options))
        print(row(work, trials), flush=True)
    print(f"\nAsked of `compare` at 4096 × 49152: ≤ {ASKED_MIB:g} MiB, ≤ {ASKED_RATIO} × the plain time.")


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--alternations", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2, help="timed calls of a trial; the fastest counts")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--trial", nargs=2, metavar=("WORK", "SIDE"), help="one trial in this process")
    return parser.parse_args()


def spawn_trial(work: str, side: str, options: argparse.Namespace) -> Trial:
    """One trial in a fresh process."""
    sizes = [f"--{name}={getattr(options, name)}" for name in ("tokens", "vocab", "hidden", "repeats", "threads")]
    command = [sys.executable, __file__, "--trial", work, side, *sizes]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run_trial(work: str, side: str, options: argparse.Namespace) -> Trial:
    """Seconds of the fastest call, MiB above the inputs at the highest, and the mean of all results."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    is_trained = work == "train"
    hidden, ref_hidden = (torch.randn(options.tokens, options.hidden) for _ in range(2))
    heads = tuple(torch.randn(options.vocab, options.hidden) / options.hidden**0.5 for _ in range(2))
    ids = torch.randint(0, options.vocab, (options.tokens,))
    hidden.requires_grad_(is_trained)
    heads[0].requires_grad_(is_trained)
    call = CALLS[side][work]
    call(hidden[:4], ref_hidden[:4], heads, ids[:4])  # the libraries' own buffers are not what is measured
    hidden.grad = heads[0].grad = None
    before, seconds, result = reset_peak_mib(), [], 0.0
    for _ in range(options.repeats):
        started = time.perf_counter()
        result = call(hidden, ref_hidden, heads, ids)
        seconds.append(time.perf_counter() - started)
        hidden.grad = heads[0].grad = None
    return {"seconds": min(seconds), "extra_mib": memory_mib("VmHWM") - before, "result": result}


def memory_mib(field: str) -> float:
    """A line of the kernel's account of this process: `VmRSS` now, `VmHWM` at the highest."""
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    if found is None:
        raise SystemExit(f"/proc/self/status has no {field}; this benchmark needs Linux.")
    return int(found[1]) / 1024


def reset_peak_mib() -> float:
    """Set the high-water mark down to what is resident, and return that."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory_mib("VmRSS")


Call = Callable[[Tensor, Tensor, tuple[Tensor, Tensor], Tensor], float]


def mean_of(*results: Tensor) -> float:
    """One number that both sides must agree in."""
    return float(sum(result.detach().double().mean() for result in results))


@torch.no_grad()
def plain_compare(hidden: Tensor, ref_hidden: Tensor, heads: tuple[Tensor, Tensor], ids: Tensor) -> float:
    """All logits of both models at once."""
    policy = torch.log_softmax(hidden @ heads[0].T, dim=-1)
    reference = torch.log_softmax(ref_hidden @ heads[1].T, dim=-1)
    probs = policy.exp()
    chosen = (logprobs.gather(1, ids[:, None]) for logprobs in (policy, reference))
    return mean_of(*chosen, -(probs * policy).sum(dim=-1), (probs * (policy - reference)).sum(dim=-1))


@torch.no_grad()
def our_compare(hidden: Tensor, ref_hidden: Tensor, heads: tuple[Tensor, Tensor], ids: Tensor) -> float:
    """A chunk of tokens at a time."""
    got = compare_with_reference(hidden, ref_hidden, heads, ids)
    return mean_of(got.logprobs, got.ref_logprobs, got.entropy_nats, got.kl_exact_nats)


def plain_logprobs(hidden: Tensor, _: Tensor, heads: tuple[Tensor, Tensor], ids: Tensor) -> float:
    """All logits at once; backward where the inputs ask for it."""
    policy = torch.log_softmax(hidden @ heads[0].T, dim=-1)
    logprobs = policy.gather(1, ids[:, None])[:, 0]
    if logprobs.requires_grad:
        logprobs.mean().backward()
    entropy = -(policy.detach().exp() * policy.detach()).sum(dim=-1)
    return mean_of(logprobs, entropy)


def our_logprobs(hidden: Tensor, _: Tensor, heads: tuple[Tensor, Tensor], ids: Tensor) -> float:
    """A chunk of tokens at a time; backward where the inputs ask for it."""
    logprobs, entropy = logprobs_from_hidden(hidden, heads[0], ids)
    if logprobs.requires_grad:
        logprobs.mean().backward()
    return mean_of(logprobs, entropy)


CALLS: dict[str, dict[str, Call]] = {
    "plain": {"compare": plain_compare, "logprobs": plain_logprobs, "train": plain_logprobs},
    "ours": {"compare": our_compare, "logprobs": our_logprobs, "train": our_logprobs},
}


def row(work: str, trials: dict[str, list[Trial]]) -> str:
    """One line of the table; exits where the two sides computed different things."""
    plain, ours = (
        {name: statistics.median(trial[name] for trial in trials[side]) for name in ("extra_mib", "seconds", "result")}
        for side in SIDES
    )
    if abs(plain["result"] - ours["result"]) > 1e-4 * abs(plain["result"]):
        raise SystemExit(f"{work}: plain gives {plain['result']}, ours {ours['result']}; no time to compare.")
    cells = [f"{side['extra_mib']:.0f}" for side in (plain, ours)] + [
        f"{side['seconds']:.2f}" for side in (plain, ours)
    ]
    return f"| {work} | " + " | ".join(cells) + f" | {ours['seconds'] / plain['seconds']:.2f} |"


if __name__ == "__main__":
    main()
