from __future__ import annotations

import pytest
import torch

from rlhf_core.errors import NumericsError
from rlhf_core.numerics.checks import require_finite


def test_a_bad_value_is_named_with_its_count_and_first_index():
    tensor = torch.tensor([[1.0, float("nan")], [float("inf"), 2.0]])
    with pytest.raises(
        NumericsError, match=r"rewards holds 2 NaN or infinite values; the first is nan at index \[0, 1\]"
    ):
        require_finite("rewards", tensor)


def test_only_what_the_mask_shows_is_judged():
    tensor = torch.tensor([float("nan"), 1.0, float("-inf")])
    require_finite("x", tensor, torch.tensor([False, True, False]))
    with pytest.raises(NumericsError, match=r"1 NaN or infinite values; the first is -inf at index \[2\]"):
        require_finite("x", tensor, torch.tensor([False, True, True]))


def test_integers_and_empty_tensors_are_finite():
    require_finite("ids", torch.tensor([1, 2]))
    require_finite("nothing", torch.empty(0, 3))
