"""The engines of one run in one process.

Loading a model for each stage would cost more than using it, so engines live here, are built when first asked for,
and are dropped after a failure; the next use builds them anew from a checkpoint.
"""

from __future__ import annotations

import gc
import logging
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import PreTrainedTokenizerBase

from rlhf_core.config.load import dump_config
from rlhf_core.config.run import RunConfig
from rlhf_core.data.events import read_events, record_event
from rlhf_core.data.refs import CheckpointRef
from rlhf_core.data.store import MANIFEST, RunFolder, disk_errors, write_bytes, write_json
from rlhf_core.engines.memory_use import MemoryWatch, memory_reader
from rlhf_core.engines.protocols import RolloutEngine, Scorer, WorkerGroup
from rlhf_core.engines.vllm_rollout import VllmRollout
from rlhf_core.errors import ConfigError, RunFolderError
from rlhf_core.models.loading import load_tokenizer
from rlhf_core.progress import ProgressBar, progress_bar
from rlhf_core.recovery.changed_settings import accepted_changes
from rlhf_core.recovery.lock import RunLock, acquire_lock
from rlhf_core.recovery.plan import Plan
from rlhf_core.safety.protocol import SafetyClassifier
from rlhf_core.seeding import seed_everything
from rlhf_core.versions import versions
from rlhf_core.workers.inline import InlineWorkers

logger = logging.getLogger(__name__)
_SFT_CHECKPOINT = "step-000000"


class Runtime:
    """Owns a run's folder, lock and engines."""

    def __init__(self, config: RunConfig, folder: RunFolder, lock: RunLock, *, show_progress: bool = True) -> None:
        self.config = config
        self.folder = folder
        self.lock = lock
        self.show_progress = show_progress
        self.plan = Plan(config)
        self._workers: WorkerGroup | None = None
        self._state: Path | None = None
        self._scorer: Scorer | None = None
        self._safety: SafetyClassifier | None = None
        self._vllm: VllmRollout | None = None
        if config.compute.threads is not None:
            torch.set_num_threads(config.compute.threads)
        seed_everything(config.seed, deterministic=config.compute.deterministic)

    @cached_property
    def device(self) -> torch.device:
        """Raises ConfigError where a GPU is asked for and there is none."""
        wanted = self.config.compute.device
        if wanted == "cuda" and not torch.cuda.is_available():
            raise ConfigError(
                "compute.device is 'cuda', but torch sees no GPU here. Set compute.device to auto or cpu."
            )
        return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")

    @cached_property
    def memory(self) -> MemoryWatch:
        """Of this process on its device."""
        return MemoryWatch(memory_reader(self.device))

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return load_tokenizer(self.config.model)

    def fresh(self) -> WorkerGroup:
        """Workers in the state of the SFT model, before any update."""
        self.drop()
        self._workers = self._new_workers()
        return self._workers

    def at(self, policy: CheckpointRef) -> WorkerGroup:
        """Workers whose state is that of the checkpoint."""
        if self._workers is None:
            self._workers = self._new_workers()
        if self._state != policy.path:
            self._state = None
            self._workers.load(policy.path)
            self._state = policy.path
        return self._workers

    def _new_workers(self) -> WorkerGroup:
        """The trainer's ranks as `cluster` has them, in the state of the SFT model."""
        if self.plan.config.cluster.engine == "inline":
            return InlineWorkers(self.plan.config, self.device)
        from rlhf_core.workers.ray_group import RayWorkers  # imports Ray, which inline runs need not have

        return RayWorkers(self.plan.config)

    def for_update(self, policy: CheckpointRef) -> WorkerGroup:
        """Workers at the checkpoint, about to change; a failure on the way makes the next use load them again."""
        workers = self.at(policy)
        self._state = None
        return workers

    def mark_saved(self, policy: CheckpointRef) -> None:
        """The workers' state now is that of this checkpoint."""
        self._state = policy.path

    def rollout_engine(self, policy: CheckpointRef) -> RolloutEngine:
        """An engine that samples from the checkpoint's policy."""
        if self.config.rollout.engine == "transformers":
            return self.at(policy)
        if self._vllm is None:
            self._vllm = VllmRollout(self.config.rollout, self.tokenizer, self.folder.path / "logs")
        self._vllm.sync(policy)
        return self._vllm

    def sync_metrics(self) -> dict[str, float]:
        """What the last transfer of weights to the rollout servers measured; nothing where there are none."""
        return {} if self._vllm is None else {"rollout/canary_nats": self._vllm.canary_nats}

    def take_sync_seconds(self) -> list[float]:
        """The durations of the transfers of weights since this was last asked."""
        if self._vllm is None:
            return []
        taken, self._vllm.sync_seconds = self._vllm.sync_seconds, []
        return taken

    def scorer(self) -> Scorer:
        """The accepted reward model, or the configured callable."""
        if self._scorer is None:
            from rlhf_core.rewards.scorers import build_scorer

            self._scorer = build_scorer(self.config, self.folder, self.tokenizer, self.device)
        return self._scorer

    def safety(self) -> SafetyClassifier:
        """The classifier that `rollout.rejection.safety` names.

        Raises:
            ConfigError: it names none, or the classifier cannot be loaded.
        """
        if self._safety is None:
            from rlhf_core.safety.build import build_safety

            self._safety = build_safety(self.config.rollout.rejection.safety, self.device)
        return self._safety

    def drop(self) -> None:
        """Forget all engines; what they had not saved is lost, as after a crash."""
        if self._workers is not None:
            self._workers.close()
        if self._vllm is not None:
            self._vllm.close()
        self._workers, self._state, self._vllm = None, None, None
        self._scorer, self._safety = None, None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def adopt(self, plan: Plan) -> None:
        """Go on with a retry's settings; engines built with others are dropped. Stages' keys stay."""
        if plan.config != self.plan.config:
            self.drop()
        self.plan = plan

    @contextmanager
    def progress(self, description: str, total: int) -> Generator[ProgressBar]:
        """A progress bar on stderr; silent when the output is no terminal."""
        with progress_bar(description, total, is_shown=self.show_progress) as bar:
            yield bar

    def close(self) -> None:
        """Release engines and lock; a local Ray ends."""
        self.drop()
        if self.config.cluster.engine == "ray":
            from rlhf_core.workers.local_ray import disconnect

            disconnect()
        self.lock.release()


_open: dict[Path, Runtime] = {}


def prepare_run(config: RunConfig, *, resume: bool) -> RunFolder:
    """Create the run's folder and keep the resolved configuration in it, or check that it is the same run.

    Going on, a run whose reward model was refused takes over another gate.

    A run that failed before its first result, as one does whose input is wrong, gives its name to the next try.

    Raises:
        RunFolderError: the name is in use and `resume` is false, the folder holds a run with other settings, or the
            disk refuses.
        RunLocked: another process is at work on the run.
    """
    folder = RunFolder(config.folder.absolute())
    if folder.config.exists() and not resume and not _has_results(folder):
        lock = acquire_lock(folder)
        shutil.rmtree(folder.checkpoints, ignore_errors=True)  # the SFT model's copy, maybe of another one
        folder.ledger.unlink(missing_ok=True)  # attempts with other settings
        _write_settings(folder, config)
        lock.release()
        return folder
    if folder.config.exists():
        changes = accepted_changes(folder, stored_config(folder.path), config)
        if not resume:
            given = "".join(f" --set {key}={new}" for key, (_, new) in changes.items())
            raise RunFolderError(
                f"{folder.path} already holds a run. Go on with it: `rlhf resume {folder.path}{given}`; "
                "or choose another name with --name."
            )
        if changes:
            _take_over(folder, config, changes)
        return folder
    if folder.path.exists() and not all(_is_of_a_start(path) for path in folder.path.iterdir()):
        raise RunFolderError(
            f"{folder.path} exists and is no run (it has no config.yaml). Choose another name or home."
        )
    with disk_errors(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
    _write_settings(folder, config)
    return folder


def stored_config(path: Path) -> RunConfig:
    """The configuration of an existing run."""
    file = RunFolder(path).config
    if not file.is_file():
        raise RunFolderError(
            f"{path.absolute()} is no run: it has no config.yaml. Give the folder of a run, e.g. runs/quickstart."
        )
    return RunConfig.model_validate(yaml.safe_load(file.read_text()))


def open_runtime(path: Path) -> Runtime:
    """The runtime of the run in `path`; one per process, made at the first call, holding the run's lock.

    Raises:
        RunLocked: another process owns the run.
    """
    path = path.absolute()
    if path not in _open:
        folder = RunFolder(path)
        config = stored_config(path)
        _open[path] = Runtime(config, folder, acquire_lock(folder))
    return _open[path]


def close_runtime(path: Path) -> None:
    """Release the engines and the lock, if this process has them."""
    runtime = _open.pop(path.absolute(), None)
    if runtime is not None:
        runtime.close()


def _has_results(folder: RunFolder) -> bool:
    """Whether a run got beyond the preparation of its data: a baseline, a reward model, or an update of the policy."""
    results = (path for place in (folder.baseline, folder.reward_model) for path in place.rglob(MANIFEST))
    updates = (path for path in folder.checkpoints.glob("step-*") if path.name != _SFT_CHECKPOINT)
    return any(results) or any(updates)


def _is_of_a_start(path: Path) -> bool:
    """Whether a file in a folder without config.yaml is what a start leaves that the disk or a kill cut short."""
    return path.name in ("lock", "manifest.json") or path.name.endswith(".partial")


def _write_settings(folder: RunFolder, config: RunConfig) -> None:
    write_json(folder.manifest, versions(config))
    write_bytes(folder.config, dump_config(config).encode())


def _take_over(folder: RunFolder, config: RunConfig, changes: Mapping[str, tuple[Any, Any]]) -> None:
    lock = acquire_lock(folder)
    words = ", ".join(f"{key}: {old} → {new}" for key, (old, new) in changes.items())
    number = sum(event["kind"] == "settings_changed" for event in read_events(folder)) + 1
    record_event(folder, "settings_changed", f"going on with other settings: {words}.", changes=words, number=number)
    _write_settings(folder, config)
    lock.release()
