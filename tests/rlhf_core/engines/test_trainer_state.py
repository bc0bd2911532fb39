"""Resume is bit-exact, and a damaged or foreign checkpoint is refused before anything changes."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from rlhf_core.engines.torch_trainer import TorchTrainer
from rlhf_core.engines.trainer_state import load_trainer, save_trainer
from rlhf_core.errors import CheckpointError
from rlhf_core.update.ppo import PpoUpdate
from tests.rlhf_core.engines.trainer_case import (
    CONTROL,
    CPU,
    parameters,
    random_experience,
    random_rollouts,
    run_config,
)
from tests.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("state") / "model")


def one_update(trainer: TorchTrainer, number: int) -> dict[str, float]:
    rollouts = random_rollouts(seed=number)
    return PpoUpdate(trainer, random_experience(trainer, rollouts, seed=number), [], CONTROL).run(seed=number)


@pytest.fixture(scope="module")
def saved(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "step-000001"
    trainer = TorchTrainer(run_config(model), CPU)
    one_update(trainer, 1)
    save_trainer(trainer, folder)
    return folder


def test_case_C01_saving_and_loading_between_two_updates_changes_no_bit(model, saved):
    straight, resumed = TorchTrainer(run_config(model), CPU), TorchTrainer(run_config(model), CPU)
    one_update(straight, 1)
    expected = one_update(straight, 2)
    load_trainer(resumed, saved)
    assert one_update(resumed, 2) == expected
    for first, second in ((straight.policy, resumed.policy), (straight.critic, resumed.critic)):
        assert all(torch.equal(p, parameters(second)[name]) for name, p in parameters(first).items())
    for first, second in (
        (straight.actor_optimizer, resumed.actor_optimizer),
        (straight.critic_optimizer, resumed.critic_optimizer),
    ):
        assert first.steps == second.steps == 8
        assert all(torch.equal(tensor, second.moments()[key]) for key, tensor in first.moments().items())


def test_loading_keeps_the_policy_object_and_does_not_share_memory_with_the_files(model, saved):
    trainer = TorchTrainer(run_config(model), CPU)
    policy = trainer.policy
    load_trainer(trainer, saved)
    assert trainer.policy is policy
    one_update(trainer, 2)
    again = TorchTrainer(run_config(model), CPU)
    load_trainer(again, saved)
    assert any(not torch.equal(p, parameters(again.policy)[n]) for n, p in parameters(trainer.policy).items())


def test_a_trainer_goes_back_to_a_state_before_its_first_step(model, tmp_path):
    trainer = TorchTrainer(run_config(model), CPU)
    save_trainer(trainer, tmp_path / "step-000000")
    before = parameters(trainer.policy)
    one_update(trainer, 1)
    load_trainer(trainer, tmp_path / "step-000000")
    assert trainer.actor_optimizer.steps == 0
    assert trainer.actor_optimizer.moments() == {}
    assert all(torch.equal(before[name], p) for name, p in parameters(trainer.policy).items())


def test_policy_and_critic_are_plain_hugging_face_folders(saved):
    policy = AutoModelForCausalLM.from_pretrained(saved / "policy")
    tokenizer = AutoTokenizer.from_pretrained(saved / "policy")
    AutoModel.from_pretrained(saved / "critic")
    assert tokenizer.chat_template
    assert policy(torch.tensor([[1, 2, 3]])).logits.shape[-1] == policy.config.vocab_size


def test_random_states_come_back(model, tmp_path):
    trainer = TorchTrainer(run_config(model), CPU)
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        save_trainer(trainer, tmp_path / "checkpoint")
        expected = random.random(), np.random.random(), torch.rand(3).tolist()
        load_trainer(trainer, tmp_path / "checkpoint")
        assert (random.random(), np.random.random(), torch.rand(3).tolist()) == expected
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def edit_state(folder: Path, **changes: object) -> None:
    path = folder / "trainer" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def drop_moment(folder: Path) -> None:
    path = folder / "trainer" / "actor_optimizer.safetensors"
    tensors = load_file(path)
    tensors.pop("model.norm.weight/exp_avg")
    save_file(tensors, path)


def halve_file(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def other_model(folder: Path) -> None:
    shutil.rmtree(folder / "policy")
    smaller = make_tiny_model(folder / "policy", has_tokenizer=False)
    config = json.loads((smaller / "config.json").read_text()) | {"num_hidden_layers": 1}
    (smaller / "config.json").write_text(json.dumps(config))


DAMAGES = {
    "no state": (lambda folder: (folder / "trainer/state.json").unlink(), "state.json cannot be read"),
    "half a state": (lambda folder: halve_file(folder / "trainer/state.json"), "state.json cannot be read"),
    "foreign format": (lambda folder: edit_state(folder, format="other"), "expected format"),
    "another format": (lambda folder: edit_state(folder, format="trainer-1"), "trainer-2"),
    "no moments": (lambda folder: (folder / "trainer/critic_optimizer.safetensors").unlink(), "critic_optimizer"),
    "empty moments": (
        lambda folder: (folder / "trainer/actor_optimizer.safetensors").write_bytes(b""),
        "cannot be read",
    ),
    "lost moment": (drop_moment, "expected model.norm.weight/exp_avg"),
    "moments of another step": (
        lambda folder: edit_state(
            folder,
            optimizers={name: {"steps": 9, "skipped_in_row": 0} for name in ("actor_optimizer", "critic_optimizer")},
        ),
        "expected 9",
    ),
    "no policy": (lambda folder: shutil.rmtree(folder / "policy"), "holds no whole model"),
    "half a critic": (lambda folder: halve_file(folder / "critic/model.safetensors"), "holds no whole model"),
    "no random states": (lambda folder: (folder / "trainer/random-00000.safetensors").unlink(), "random-00000"),
    "another model": (other_model, "has shape None"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_case_C06_a_damaged_or_foreign_checkpoint_is_refused_and_nothing_changes(model, saved, tmp_path, damage):
    folder = tmp_path / "damaged"
    shutil.copytree(saved, folder)
    break_it, message = DAMAGES[damage]
    break_it(folder)
    trainer = TorchTrainer(run_config(model), CPU)
    before = parameters(trainer.policy) | {f"critic.{n}": p for n, p in parameters(trainer.critic).items()}
    with pytest.raises(CheckpointError, match=message):
        load_trainer(trainer, folder)
    after = parameters(trainer.policy) | {f"critic.{n}": p for n, p in parameters(trainer.critic).items()}
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert trainer.actor_optimizer.steps == 0
