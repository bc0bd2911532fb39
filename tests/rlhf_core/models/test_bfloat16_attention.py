"""Attention as plain products: against float64, and no token sees a later one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlhf_core.models import bfloat16_attention
from rlhf_core.numerics import head_matmul

LENGTHS = (1, 33, 64, 150)
"""Less than a block, exactly one, and two with a part of a third."""


def inputs(tokens: int, groups: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(1, count, tokens, 16, generator=generator).bfloat16() for count in (6, groups, groups)]


def exact(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """The definition, token by token and head by head."""
    share, rows = query.shape[1] // key.shape[1], []
    for place in range(query.shape[2]):
        heads = []
        for head in range(query.shape[1]):
            scores = key[0, head // share, : place + 1] @ query[0, head, place] * scale
            heads.append(torch.softmax(scores, dim=0) @ value[0, head // share, : place + 1])
        rows.append(torch.stack(heads))
    return torch.stack(rows, dim=1)[None]


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_values_and_gradients_are_those_of_the_definition(tokens, groups, scale):
    given = inputs(tokens, groups)
    direction = torch.randn(1, 6, tokens, 16, generator=torch.Generator().manual_seed(4)).bfloat16()
    wide = [tensor.double().requires_grad_() for tensor in given]
    expected = exact(*wide, 0.25 if scale is None else scale)
    ours = [tensor.requires_grad_() for tensor in given]
    found = bfloat16_attention.attention(*ours, scale)
    assert found.shape == expected.shape and found.dtype == torch.bfloat16
    pairs = [(found, expected)]
    pairs += zip(
        torch.autograd.grad(found, ours, direction),
        torch.autograd.grad(expected, wide, direction.double()),
        strict=True,
    )
    for mine, theirs in pairs:
        # bfloat16 keeps 8 bits: a rounding is 0.2 % on average. A single token's query and key have no gradient.
        assert (mine.double() - theirs).norm() <= 0.01 * theirs.norm() + 1e-6


def test_no_token_sees_a_later_one():
    given = inputs(150)
    before = bfloat16_attention.attention(*given, None)
    for tensor in given:
        tensor[:, :, 70] += 1.0
    is_same = (before == bfloat16_attention.attention(*given, None)).all(dim=-1).all(dim=1)[0]
    assert is_same[:70].all() and not is_same[70]


def test_float32_inputs_under_autocast_are_rounded_and_their_gradients_are_wide():
    given = [tensor.float().requires_grad_() for tensor in inputs(70)]
    with torch.autocast("cpu", torch.bfloat16):
        found = bfloat16_attention.attention(*given, None)
    assert torch.equal(found, bfloat16_attention.attention(*inputs(70), None))
    assert all(gradient.dtype == torch.float32 for gradient in torch.autograd.grad(found.float().sum(), given))


@pytest.mark.parametrize(
    ("has_units", "is_autocast", "dtype", "tokens", "expected"),
    [
        (True, True, torch.float32, 256, True),
        (True, False, torch.bfloat16, 8, True),
        (False, True, torch.float32, 8, False),
        (True, False, torch.float32, 8, False),
        (True, True, torch.float32, 257, False),
    ],
)
def test_it_is_used_for_short_sequences_where_products_run_in_bfloat16(
    has_units, is_autocast, dtype, tokens, expected, monkeypatch
):
    monkeypatch.setattr(head_matmul, "cpu_multiplies_bfloat16", lambda: has_units)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
        assert bfloat16_attention.is_faster(torch.zeros(1, 2, tokens, 4, dtype=dtype)) is expected
