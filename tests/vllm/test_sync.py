"""Proof 3: new weights arrive, and a server that does not have them is refused."""

import shutil

import pytest

from rlhf_core.engines.protocols import GenerationRequest, Sampling
from rlhf_core.engines.vllm_canary import canary_nats, read_policy
from rlhf_core.engines.vllm_process import SIDE
from rlhf_core.errors import StaleEngine
from tests.vllm.conftest import started
from tests.vllm.policies import random_policy, save_policy, trainer_logprobs, updated

UPDATES = 5


def test_after_each_of_five_updates_the_server_answers_as_the_trainer(
    environment, real_policy, tmp_path, record_property
):
    model, tokenizer = real_policy
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    differences = []
    try:
        with started(environment, tokenizer, tmp_path / "logs") as engine:
            before = save_policy(tmp_path, model, tokenizer, 0)
            engine.sync(before)
            server = engine._process.group
            for step in range(1, UPDATES + 1):
                updated(model, step)
                policy = save_policy(tmp_path, model, tokenizer, step)
                client = engine._pool.servers[0].client
                with pytest.raises(StaleEngine):  # what it is before the sync: the deliberately stale server
                    canary_nats(client, read_policy(policy), 1e-3)
                engine.sync(policy)
                differences.append(engine.canary_nats)
                (response,) = engine.generate([GenerationRequest((4, 5, 6), step)], Sampling(8, 0.6))
                expected = trainer_logprobs(model, (4, 5, 6), response.response_ids, 0.6)
                assert max(abs(a - b) for a, b in zip(response.logprobs, expected, strict=True)) < 1e-3
            assert engine._process.group == server, "no restart"
            seconds = engine.sync_seconds
    finally:
        model.load_state_dict(start)
    record_property("canary_nats", differences)
    record_property("sync_seconds", seconds[1:])
    print(f"canary: {max(differences):.1e} nats at most; seconds per sync: {[round(one, 2) for one in seconds[1:]]}")
    assert max(differences) < 1e-3


def test_a_head_that_was_left_packed_would_be_noticed(environment, tmp_path, monkeypatch):
    """The trap: without the re-packing a tied head keeps its old weights, and the canary must say so."""
    side = shutil.copytree(SIDE, tmp_path / "side")
    extension = side / "rlhf_weight_sync.py"
    text = extension.read_text()
    call = "        repack_tied(self.model_runner.get_model())\n"
    assert call in text
    extension.write_text(text.replace(call, ""))
    monkeypatch.setattr("rlhf_core.engines.vllm_process.SIDE", side)
    model, tokenizer = random_policy()
    with started(environment, tokenizer, tmp_path / "logs") as engine:
        engine.sync(save_policy(tmp_path, model, tokenizer, 0))
        updated(model, 1)
        with pytest.raises(StaleEngine):
            engine.sync(save_policy(tmp_path, model, tokenizer, 1))


def test_weights_that_are_cut_short_are_refused_and_the_old_ones_stay(environment, tmp_path):
    model, tokenizer = random_policy()
    with started(environment, tokenizer, tmp_path / "logs") as engine:
        first = save_policy(tmp_path, model, tokenizer, 0)
        engine.sync(first)
        updated(model, 1)
        second = save_policy(tmp_path, model, tokenizer, 1)
        weights = second.path / "policy" / "model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(StaleEngine, match="damaged or not whole"):
            engine.sync(second)
        weights.write_bytes(whole)
        engine.sync(second)
        assert engine.canary_nats < 1e-3
