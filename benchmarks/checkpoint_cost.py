"""What a verified checkpoint costs: saving one against writing the same bytes with fsync, in turns.

python benchmarks/checkpoint_cost.py [--hidden 576 --layers 30 --heads 9 --key-value-heads 3 --vocabulary 49152]
    [--repeats 5] [--folder DIR] [--verify now|background|hashes]

Policy, critic and both optimizers of a random Llama of SmolLM2-135M's shape. Prints the medians and their ratio.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_core.checkpoints.background import verdict
from rlhf_core.checkpoints.records import read_registry
from rlhf_core.checkpoints.save import new_reference, save_checkpoint
from rlhf_core.checkpoints.stage import start_policy
from rlhf_core.config.run import RunConfig
from rlhf_core.data.refs import CheckpointRef
from rlhf_core.data.store import fsync_path
from rlhf_core.quickstart.base_model import BaseModelSettings, llama_config
from rlhf_core.quickstart.tokenizer import build_tokenizer, save_tokenizer
from rlhf_core.runtime import Runtime, close_runtime, open_runtime, prepare_run


def make_model(folder: Path, given: argparse.Namespace) -> None:
    """A random Llama with a small tokenizer."""
    tokenizer = build_tokenizer(["one", "two"])
    small = llama_config(BaseModelSettings(hidden_size=32, intermediate_size=64, layers=1, heads=2), tokenizer)
    settings: dict[str, Any] = small.to_dict() | {
        "hidden_size": given.hidden,
        "intermediate_size": given.hidden * 8 // 3,
        "num_hidden_layers": given.layers,
        "num_attention_heads": given.heads,
        "num_key_value_heads": given.key_value_heads,
        "head_dim": given.hidden // given.heads,
        "vocab_size": given.vocabulary,
        "tie_word_embeddings": True,
    }
    LlamaForCausalLM(LlamaConfig(**settings)).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)


def run_config(model: Path, home: Path, verify: str) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "cost",
            "home": home,
            "data": {"prompts": [{"path": "p"}], "preferences": {"train": [{"path": "q"}]}, "ptx": [{"path": "t"}]},
            "model": {"policy": str(model), "critic_init": "policy"},
            "checkpoints": {"verify": verify, "keep_last": 1},
        }
    )


def take_a_step(workers: Any) -> None:
    """Fill the optimizers' moments."""
    trainer = workers.trainer
    for model, optimizer in ((trainer.policy, trainer.actor_optimizer), (trainer.critic, trainer.critic_optimizer)):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        optimizer.step()


def write_plainly(sizes: dict[str, int], content: memoryview, folder: Path) -> float:
    """Seconds to write files of these sizes and force them to the disk."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.sync()
    started = time.perf_counter()
    for number, size in enumerate(sizes.values()):
        with (folder / str(number)).open("wb", buffering=0) as file:
            for start in range(0, size, len(content)):
                file.write(content[: min(len(content), size - start)])
            os.fsync(file.fileno())
    fsync_path(folder)
    return time.perf_counter() - started


def save_once(runtime: Runtime, policy: CheckpointRef, step: int) -> tuple[CheckpointRef, float]:
    workers = runtime.at(policy)
    os.sync()
    started = time.perf_counter()
    saved = save_checkpoint(
        runtime, workers, new_reference(runtime, step, policy.control, {}), parent=policy.step, experience_sha256=None
    )
    seconds = time.perf_counter() - started
    entry = read_registry(runtime.folder).checkpoints[step]
    if entry.status == "saved":
        verdict(saved.path, runtime.config.model, manifest_sha256=entry.manifest_sha256, wait=True)
    return saved, seconds


def measure(given: argparse.Namespace, place: Path) -> None:
    make_model(place / "model", given)
    folder = prepare_run(run_config(place / "model", place / "runs", given.verify), resume=False)
    runtime = open_runtime(folder.path)
    policy = start_policy(runtime)
    take_a_step(runtime.at(policy))
    content = memoryview(os.urandom(1 << 24))
    saving: list[float] = []
    writing: list[float] = []
    sizes: dict[str, int] = {}
    for step in range(1, given.repeats + 1):
        policy, seconds = save_once(runtime, policy, step)
        files = [path for path in policy.path.rglob("*") if path.is_file()]
        sizes = {str(path): path.stat().st_size for path in files}
        saving.append(seconds)
        writing.append(write_plainly(sizes, content, place / "plain"))
        print(f"{step}: saved in {seconds:.2f} s, written in {writing[-1]:.2f} s", flush=True)
    close_runtime(folder.path)
    ratio = statistics.median(saving) / statistics.median(writing)
    print(
        f"verify={given.verify}: {sum(sizes.values()) / 2**30:.2f} GiB in {len(sizes)} files; median save "
        f"{statistics.median(saving):.2f} s, plain write with fsync {statistics.median(writing):.2f} s, "
        f"ratio {ratio:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"hidden": 576, "layers": 30, "heads": 9, "key-value-heads": 3, "vocabulary": 49152, "repeats": 5}
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--folder", type=Path, default=None, help="where to write; the system's temporary folder")
    parser.add_argument("--verify", choices=["now", "background", "hashes"], default="now")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        measure(given, Path(place))


if __name__ == "__main__":
    main()
