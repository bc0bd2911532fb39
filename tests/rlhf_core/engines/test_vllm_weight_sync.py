"""What runs on vLLM's side, without vLLM."""

import importlib.util
import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from rlhf_core.data.store import file_sha256
from rlhf_core.engines.vllm_process import SIDE


@pytest.fixture(scope="module")
def side():
    spec = importlib.util.spec_from_file_location("rlhf_weight_sync", SIDE / "rlhf_weight_sync.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path):
    save_file({"a": torch.arange(4.0), "b": torch.ones(2, 3)}, tmp_path / "model-1.safetensors")
    save_file({"c": torch.zeros(5)}, tmp_path / "model-2.safetensors")
    return tmp_path


def hashes(folder):
    return {path.name: file_sha256(path) for path in folder.glob("*.safetensors")}


class PackedHead(torch.nn.Module):
    """A layer that works from a packed copy, as vLLM's does on a CPU."""

    def __init__(self, weight, *, packs: bool = True):
        super().__init__()
        self.weight = weight
        self.packed = weight.detach().clone()
        self.quant_method = SimpleNamespace(process_weights_after_loading=self.pack) if packs else SimpleNamespace()

    def pack(self, layer):
        layer.packed = layer.weight.detach().clone()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(4, 3)
        self.head = PackedHead(self.embed.weight)
        self.other = PackedHead(torch.nn.Parameter(torch.zeros(4, 3)))


class Worker:
    def __init__(self, side, model):
        self.seen = []
        self.model_runner = SimpleNamespace(
            reload_weights=lambda weights_iterator: self.seen.extend(weights_iterator), get_model=lambda: model
        )
        self.load = lambda *given: side.WeightSync.rlhf_load_weights(self, *given)


def test_every_tensor_of_every_file_is_loaded(side, folder):
    worker = Worker(side, torch.nn.Module())
    answer = worker.load(str(folder), json.dumps(hashes(folder)))
    assert answer["tensors"] == 3 and answer["seconds"] > 0 and "problem" not in answer
    found = dict(worker.seen)
    assert set(found) == {"a", "b", "c"} and torch.equal(found["a"], torch.arange(4.0))


def cut_short(folder):
    path = folder / "model-1.safetensors"
    path.write_bytes(path.read_bytes()[:-3])


def one_bit(folder):
    path = folder / "model-1.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def gone(folder):
    (folder / "model-2.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "words"), [(cut_short, "not whole"), (one_bit, "not whole"), (gone, "cannot be read on this machine")]
)
def test_files_that_are_not_those_of_the_manifest_change_nothing(damage, words, side, folder):
    expected = hashes(folder)
    damage(folder)
    worker = Worker(side, torch.nn.Module())
    answer = worker.load(str(folder), json.dumps(expected))
    assert words in answer["problem"] and not worker.seen


def test_a_file_with_the_right_hash_that_is_no_weights_file_is_refused(side, folder):
    (folder / "model-1.safetensors").write_bytes(b"not weights")
    answer = Worker(side, torch.nn.Module()).load(str(folder), json.dumps(hashes(folder)))
    assert "no safetensors file" in answer["problem"]


def test_without_any_file_nothing_is_loaded(side, folder):
    assert "no weight file" in Worker(side, torch.nn.Module()).load(str(folder), "{}")["problem"]


def test_a_tied_head_is_prepared_anew_and_a_head_of_its_own_is_left_alone(side, folder):
    model = Model()
    with torch.no_grad():
        model.embed.weight.add_(1)
        model.other.weight.add_(1)
    assert not torch.equal(model.head.packed, model.embed.weight)
    Worker(side, model).load(str(folder), json.dumps(hashes(folder)))
    assert torch.equal(model.head.packed, model.embed.weight)
    assert not torch.equal(model.other.packed, model.other.weight)


def test_a_tied_layer_that_needs_no_preparation_is_no_obstacle(side):
    model = Model()
    model.head = PackedHead(model.embed.weight, packs=False)
    side.repack_tied(model)
