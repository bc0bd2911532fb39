"""Breaks one numeric line at a time, in a copy of the sources, and shows that the tests notice each.

python tests/mutants.py            # exit code 1 where a mutant survives
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("rlhf_core", "tasks", "flows", "deployments", "tests", "docs", "pyproject.toml")


@dataclass(frozen=True)
class Mutant:
    """`old` stands once in `file` and becomes `new`; `tests` must then fail."""

    file: str
    old: str
    new: str
    tests: str


_NUMERICS, _TESTS = "rlhf_core/numerics", "tests/rlhf_core/numerics"
MUTANTS = (
    Mutant(
        f"{_NUMERICS}/advantages.py", "next_values - values", "next_values + values", f"{_TESTS}/test_advantages.py"
    ),
    Mutant(
        f"{_NUMERICS}/whitening.py",
        "(x.to(torch.float64) - moments.mean) / (moments.std",
        "(x.to(torch.float64) - moments.mean) / (moments.std**2",
        f"{_TESTS}/test_whitening.py",
    ),
    Mutant(
        f"{_NUMERICS}/policy_loss.py",
        "torch.minimum(unclipped, clipped)",
        "torch.maximum(unclipped, clipped)",
        f"{_TESTS}/test_policy_loss.py",
    ),
    Mutant(
        f"{_NUMERICS}/kl.py",
        "torch.expm1(-log_ratio) + log_ratio",
        "torch.expm1(log_ratio) - log_ratio",
        f"{_TESTS}/test_kl.py",
    ),
    Mutant(
        f"{_NUMERICS}/logprobs.py",
        "scale = (-grad_logprobs / temperature)",
        "scale = (-grad_logprobs)",
        f"{_TESTS}/test_logprobs.py",
    ),
    Mutant(
        f"{_NUMERICS}/group_advantages.py",
        "groups.counts / (groups.counts - 1)",
        "(groups.counts - 1) / groups.counts",
        f"{_TESTS}/test_group_advantages.py",
    ),
    Mutant(f"{_NUMERICS}/value_loss.py", "torch.maximum(", "torch.minimum(", f"{_TESTS}/test_value_loss.py"),
    Mutant(
        f"{_NUMERICS}/chunked_advantages.py",
        "following = advantages[:, start]",
        "following = torch.zeros_like(following)",
        f"{_TESTS}/test_chunked_advantages.py",
    ),
    Mutant(
        "rlhf_core/experience/kl_shaping.py",
        "token_rewards = -kl_coef * kl_t",
        "token_rewards = kl_coef * kl_t",
        "tests/rlhf_core/experience/test_kl_shaping.py",
    ),
    Mutant(
        "rlhf_core/engines/packing.py",
        "starts[:, None] + positions - 1",
        "starts[:, None] + positions",
        "tests/rlhf_core/engines/test_packing.py",
    ),
    Mutant(
        "rlhf_core/control/learning_rate.py",
        "(1 + math.cos(math.pi * progress))",
        "(1 - math.cos(math.pi * progress))",
        "tests/rlhf_core/control/test_learning_rate.py",
    ),
    Mutant(
        "rlhf_core/control/kl_coef.py",
        "self._bounds.clamped(self.value * _FACTOR)",
        "self._bounds.clamped(self.value / _FACTOR)",
        "tests/rlhf_core/control/test_kl_coef.py",
    ),
)


def main() -> int:
    """Try every mutant; the number of survivors decides the exit code."""
    survivors = 0
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place)
        for name in NEEDED:
            source = ROOT / name
            shutil.copytree(source, copy / name) if source.is_dir() else shutil.copy(source, copy / name)
        for mutant in MUTANTS:
            is_caught = tried(copy, mutant)
            survivors += not is_caught
            print(f"{'caught  ' if is_caught else 'SURVIVED'}  {mutant.file}: {mutant.old} → {mutant.new}", flush=True)
    print(f"{len(MUTANTS) - survivors} of {len(MUTANTS)} mutants caught")
    return int(survivors > 0)


def tried(copy: Path, mutant: Mutant) -> bool:
    """Whether the tests pass on the sound code and fail on the broken one."""
    path = copy / mutant.file
    sound = path.read_text()
    if sound.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.file} holds {mutant.old!r} {sound.count(mutant.old)} times; expected once")
    passes = passed(copy, mutant.tests)
    path.write_text(sound.replace(mutant.old, mutant.new))
    fails = not passed(copy, mutant.tests)
    path.write_text(sound)
    return passes and fails


def passed(copy: Path, tests: str) -> bool:
    """Whether the tests pass in the copy."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", tests]
    return subprocess.run(command, cwd=copy, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
