"""The value head: what it says, and what it takes from files."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel

from rlhf_core.errors import ConfigError
from rlhf_core.models.heads import VALUE_HEAD, ValueModel, read_score_head
from tests.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def critic(tmp_path_factory: pytest.TempPathFactory) -> ValueModel:
    return ValueModel(AutoModel.from_pretrained(make_tiny_model(tmp_path_factory.mktemp("heads") / "model")))


def test_a_value_is_an_affine_function_of_the_hidden_state_in_float32(critic):
    critic.set_head({"weight": torch.arange(32.0)[None], "bias": torch.tensor([0.5])})
    hidden = torch.randn(5, 32)
    with torch.autocast("cpu", torch.bfloat16):
        values = critic.values(hidden.bfloat16(), torch.arange(5), (3, 2))
    torch.testing.assert_close(values, hidden.bfloat16().float() @ torch.arange(32.0) + 0.5)


def test_a_saved_head_comes_back(critic, tmp_path):
    critic.set_head({"weight": torch.full((1, 32), 0.25), "bias": torch.tensor([2.0])})
    critic.save(tmp_path)
    found = read_score_head(tmp_path)
    assert found is not None
    assert torch.equal(found["weight"], critic.head.weight)
    assert torch.equal(found["bias"], critic.head.bias)


def test_a_causal_language_model_has_no_score(tmp_path):
    assert read_score_head(make_tiny_model(tmp_path / "model")) is None


def test_a_head_of_another_shape_is_refused(critic):
    with pytest.raises(ConfigError, match=r"shape \(2, 32\)"):
        critic.set_head({"weight": torch.zeros(2, 32)})


def test_a_damaged_head_is_refused(tmp_path):
    (tmp_path / VALUE_HEAD).write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_score_head(tmp_path)
