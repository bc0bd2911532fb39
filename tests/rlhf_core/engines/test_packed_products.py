import pytest
import torch

from rlhf_core.config.models import ModelConfig
from rlhf_core.engines.packed_products import can_pack, packed_products
from rlhf_core.models.lean_layers import decoder_linears, is_lean_linear
from rlhf_core.models.loading import load_policy
from tests.tiny_model import make_tiny_model

pytestmark = pytest.mark.skipif(not can_pack(), reason="oneDNN's weight layout needs an x86-64 build of torch with it")


@pytest.fixture
def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(48, 80), torch.nn.GELU(), torch.nn.Linear(80, 300, bias=False))


@torch.no_grad()
def test_the_products_are_the_plain_ones_up_to_rounding_and_plain_again_afterwards(model):
    inputs = torch.randn(2, 3, 48)
    plain = model(inputs)
    with packed_products(model):
        packed = model(inputs)
    assert packed.shape == plain.shape
    torch.testing.assert_close(packed, plain, rtol=0, atol=1e-5)
    assert torch.equal(model(inputs), plain)
    assert all("forward" not in vars(layer) for layer in model)


@torch.no_grad()
def test_a_rows_result_has_the_same_bits_beside_any_number_of_rows(model):
    inputs = torch.randn(70, 48)
    with packed_products(model):
        whole = model(inputs)
        for rows in (1, 2, 3, 7, 8, 31, 32, 33, 64):
            assert torch.equal(model(inputs[:rows]), whole[:rows])


@torch.no_grad()
def test_weights_that_changed_without_a_trace_are_the_ones_multiplied(model):
    inputs, weight = torch.randn(5, 48), model[0].weight
    with packed_products(model):
        before = model(inputs)
    version, address = weight._version, weight.data_ptr()
    weight.data.mul_(2.0)
    assert (weight._version, weight.data_ptr()) == (version, address)
    with packed_products(model):
        after = model(inputs)
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, model(inputs), rtol=0, atol=1e-5)


@torch.no_grad()
def test_an_error_inside_leaves_plain_layers(model):
    with pytest.raises(ValueError, match="inside"), packed_products(model):
        raise ValueError("inside")
    assert all("forward" not in vars(layer) for layer in model)


@torch.no_grad()
def test_autocast_keeps_the_weights_as_they_are(model):
    with torch.autocast("cpu", dtype=torch.bfloat16), packed_products(model):
        assert all("forward" not in vars(layer) for layer in model)


def test_projections_of_lean_layers_are_packed_too_and_lean_again_afterwards(tmp_path):
    folder = make_tiny_model(tmp_path / "model")
    lean = load_policy(folder, ModelConfig(policy=str(folder)), torch.device("cpu"))
    projections = decoder_linears(lean)
    assert projections and all(is_lean_linear(module) for module in projections)
    with torch.no_grad(), packed_products(lean):
        assert not any(is_lean_linear(module) for module in projections)
    assert all(is_lean_linear(module) for module in projections)
