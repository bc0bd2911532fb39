"""What runs inside vLLM's workers: new weights from a checkpoint's files, without a restart (G2).

This folder goes on the server's PYTHONPATH, in vLLM's own environment, so nothing of this project is imported here.
Start the server with `--worker-extension-cls rlhf_weight_sync.WeightSync`; see docs/rollouts.md.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import time
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

_CHUNK_BYTES = 1 << 22
_PR_SET_PDEATHSIG = 1


class WeightSync:
    """A worker extension: vLLM's worker gets these methods, which /collective_rpc calls by name."""

    model_runner: Any

    def rlhf_load_weights(self, folder: str, hashes: str) -> dict[str, Any]:
        """Take the weights of a checkpoint's policy folder.

        Args:
            folder: on storage that this machine shares with the trainer.
            hashes: JSON, the SHA-256 of each weight file by its name in the folder.

        Returns:
            `seconds` and `tensors`; or `problem`, with the old weights untouched, where the files are not those.
        """
        started = time.perf_counter()
        paths, problem = whole_files(Path(folder), json.loads(hashes))
        if problem:
            return {"problem": problem}
        counted = _Counted(named_tensors(paths))
        self.model_runner.reload_weights(weights_iterator=counted)
        repack_tied(self.model_runner.get_model())
        return {"seconds": time.perf_counter() - started, "tensors": counted.count}


class _Counted:
    """Passes tensors on and counts them."""

    def __init__(self, tensors: Iterable[tuple[str, Any]]) -> None:
        self._tensors = tensors
        self.count = 0

    def __iter__(self) -> Generator[tuple[str, Any]]:
        for pair in self._tensors:
            self.count += 1
            yield pair


def whole_files(folder: Path, hashes: Mapping[str, str]) -> tuple[list[Path], str]:
    """The weight files, and what is wrong with them ("" where all are there and have the hash that they should)."""
    if not hashes:
        return [], f"no weight file is named for {folder}"
    for name, expected in sorted(hashes.items()):
        path = folder / name
        try:
            found = _sha256(path)
        except OSError as error:
            return [], f"{path} cannot be read on this machine ({error.strerror}); it must see the trainer's storage"
        if found != expected:
            return [], f"{path} is damaged or not whole: its sha256 is {found[:12]}, expected {expected[:12]}"
        try:
            with safe_open(path, framework="pt") as file:
                file.keys()
        except SafetensorError as error:
            return [], f"{path} is no safetensors file: {error}"
    return [folder / name for name in sorted(hashes)], ""


def named_tensors(paths: Iterable[Path]) -> Generator[tuple[str, Any]]:
    """Each tensor with its name, read when it is asked for."""
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # the file is no dict
                yield name, file.get_tensor(name)


def repack_tied(model: Any) -> None:
    """Prepare layers anew whose weight is another layer's.

    A reload prepares the layers whose tensors it saw. A tied head's tensor is not in the file, and on a CPU it works
    from a packed copy: left alone it would go on with the old weights while the rest has the new ones.
    """
    owners: dict[int, int] = {}
    layers = [(module, _weight_pointer(module)) for module in model.modules()]
    for _, pointer in layers:
        if pointer is not None:
            owners[pointer] = owners.get(pointer, 0) + 1
    for module, pointer in layers:
        prepare = getattr(getattr(module, "quant_method", None), "process_weights_after_loading", None)
        if pointer is not None and owners[pointer] > 1 and prepare is not None:
            prepare(module)


def _weight_pointer(module: Any) -> int | None:
    weight = vars(module).get("_parameters", {}).get("weight")
    return weight.data_ptr() if weight is not None and weight.numel() else None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


if os.environ.get("RLHF_VLLM_OWNED"):
    # The engine's process has to end with the server's, also when that is killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
