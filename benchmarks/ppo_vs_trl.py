"""One PPO update against TRL's, on the same random model, lengths, threads and machine.

    python benchmarks/ppo_vs_trl.py --dtype float32 --alternations 3
    python benchmarks/ppo_vs_trl.py --dtype float32 --ragged --alternations 3

Makes an environment with `trl==1.12.0` (the last release with PPO) under `--cache`, runs both sides in processes of
their own, alternating, and prints wall time, CPU time and peak memory by phase, and TRL's over ours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trl_comparison.model_folder import make_model_folder
from trl_comparison.settings import Settings

HERE = Path(__file__).resolve().parent
TRL = "trl==1.12.0"
PHASES = ("generation", "experience", "update")
QUANTITIES = ("wall_seconds", "cpu_seconds", "peak_gib")
Trial = dict[str, dict[str, float]]


def main() -> None:
    """Run the comparison that the command line asks for."""
    options = parse_options()
    cache = options.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    trl_python = trl_environment(cache / "venv")
    settings = Settings(
        model=str(make_model_folder(cache / f"llama-{options.layers}-layers", layers=options.layers)),
        dtype=options.dtype,
        threads=options.threads,
        rollouts=options.rollouts,
        prompt_tokens=options.prompt_tokens,
        response_tokens=options.response_tokens,
        is_ragged=options.ragged,
        epochs=options.epochs,
        mini_batch=options.mini_batch,
        micro_batch=options.micro_batch,
        warmup_updates=options.warmup,
        updates=options.updates,
        seed=options.seed,
    )
    settings.write(cache / "settings.json")
    pythons = {"trl": trl_python, "ours": Path(sys.executable)}
    trials: dict[str, list[Trial]] = {"trl": [], "ours": []}
    for number in range(options.alternations):
        for side, python in pythons.items():
            print(f"alternation {number + 1} of {options.alternations}: {side} …", file=sys.stderr, flush=True)
            trials[side].append(run_side(side, python, cache, options.threads))
    result = summary(trials)
    print_table(settings, result)
    if options.json:
        whole = {"settings": vars(settings), "versions": versions(), "trials": trials, "summary": result}
        options.json.write_text(json.dumps(whole, indent=1) + "\n")


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="bfloat16 is autocast")
    parser.add_argument("--ragged", action="store_true", help="response lengths from 8 up to the limit, drawn once")
    parser.add_argument("--alternations", type=int, default=3, help="runs of each side, one after the other")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="CPU threads of each side")
    parser.add_argument("--layers", type=int, default=30, help="30 make 135M parameters")
    parser.add_argument("--rollouts", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--response-tokens", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--mini-batch", type=int, default=8, help="rollouts per optimizer step, both sides")
    parser.add_argument("--micro-batch", type=int, default=8, help="rollouts per forward pass, our side")
    parser.add_argument("--warmup", type=int, default=1, help="updates that are not counted")
    parser.add_argument("--updates", type=int, default=1, help="updates that are counted, in each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=Path(".cache/bench-trl"), help="environment and model")
    parser.add_argument("--json", type=Path, default=None, help="also write everything to this file")
    return parser.parse_args()


def trl_environment(folder: Path) -> Path:
    """Return the Python of an environment with TRL and our versions of torch and transformers; made when missing."""
    python = folder / "bin" / "python"
    done = folder / "installed.txt"
    wanted = [f"torch=={version('torch').split('+')[0]}", f"transformers=={version('transformers')}", TRL]
    if done.is_file() and done.read_text().split() == wanted:
        return python
    print(f"installing {' '.join(wanted)} into {folder} …", file=sys.stderr, flush=True)
    if not python.exists():
        venv.create(folder, with_pip=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *wanted], check=True)
    done.write_text("\n".join(wanted))
    return python


def run_side(side: str, python: Path, cache: Path, threads: int) -> Trial:
    """Run one side in a fresh process and return its measurements."""
    script = HERE / "trl_comparison" / {"trl": "trl_side.py", "ours": "our_side.py"}[side]
    result = cache / f"{side}.json"
    result.unlink(missing_ok=True)
    search_path = [str(HERE)] if side == "trl" else [str(HERE), str(HERE.parent)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(search_path),
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [str(python), str(script), str(cache / "settings.json"), str(result)]
    log = cache / f"{side}.log"
    with log.open("w") as output:
        done = subprocess.run(command, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode or not result.is_file():
        raise SystemExit(f"the side '{side}' failed (exit code {done.returncode}); its output is in {log}.")
    trial: Trial = json.loads(result.read_text())
    total = {name: sum(trial[phase][name] for phase in PHASES) for name in QUANTITIES[:2]}
    return trial | {"total": total | {"peak_gib": max(trial[phase]["peak_gib"] for phase in PHASES)}}


def summary(trials: dict[str, list[Trial]]) -> dict[str, Any]:
    """Medians over alternations by phase, and TRL's over ours."""
    result: dict[str, Any] = {}
    for phase in (*PHASES, "total"):
        result[phase] = {}
        for name in QUANTITIES:
            trl, ours = (statistics.median(trial[phase][name] for trial in trials[side]) for side in ("trl", "ours"))
            result[phase][name] = {"trl": trl, "ours": ours, "trl_over_ours": trl / ours, "ours_over_trl": ours / trl}
    return result


def print_table(settings: Settings, result: dict[str, Any]) -> None:
    """A Markdown table, ready for docs/results.md."""
    lengths = settings.lengths()
    print(
        f"{settings.dtype}, {settings.threads} threads, {settings.rollouts} rollouts of {settings.prompt_tokens} + "
        f"{min(lengths)}..{max(lengths)} tokens (mean {statistics.mean(lengths):.1f}), {settings.epochs} epochs, "
        f"mini-batch {settings.mini_batch}; per update, medians; {versions()}"
    )
    print("| phase | wall s TRL | ours | × faster | CPU s TRL | ours | × less | peak GiB TRL | ours | ours / TRL |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for phase, row in result.items():
        wall, cpu, peak = (row[name] for name in QUANTITIES)
        cells = [f"{wall['trl']:.1f}", f"{wall['ours']:.1f}", f"{wall['trl_over_ours']:.2f}"]
        cells += [f"{cpu['trl']:.1f}", f"{cpu['ours']:.1f}", f"{cpu['trl_over_ours']:.2f}"]
        cells += [f"{peak['trl']:.2f}", f"{peak['ours']:.2f}", f"{100 * peak['ours_over_trl']:.0f} %"]
        print(f"| {phase} | " + " | ".join(cells) + " |")


def versions() -> dict[str, str]:
    return {"torch": version("torch"), "transformers": version("transformers"), "trl": TRL.removeprefix("trl==")}


if __name__ == "__main__":
    main()
