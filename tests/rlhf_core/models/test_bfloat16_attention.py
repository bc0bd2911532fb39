"""Attention as plain products: against float64, no sequence sees another, no token sees a later one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlhf_core.models import bfloat16_attention
from rlhf_core.numerics import head_matmul

LENGTHS = (5, 1, 33, 12)


def inputs(heads: int = 6, groups: int = 2, size: int = 16, lengths: tuple[int, ...] = LENGTHS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(1, count, sum(lengths), size) for count in (heads, groups, groups)]
    return [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]


def exact(query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...], scale: float) -> Tensor:
    """The definition, token by token and head by head."""
    share = query.shape[1] // key.shape[1]
    rows, start = [], 0
    for length in lengths:
        for place in range(start, start + length):
            seen = slice(start, place + 1)
            heads = []
            for head in range(query.shape[1]):
                scores = key[0, head // share, seen] @ query[0, head, place] * scale
                heads.append(torch.softmax(scores, dim=0) @ value[0, head // share, seen])
            rows.append(torch.stack(heads))
        start += length
    return torch.stack(rows)[None]


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_values_and_gradients_are_those_of_the_definition(groups, scale):
    given = inputs(groups=groups)
    direction = torch.randn(1, sum(LENGTHS), 6, 16, generator=torch.Generator().manual_seed(4)).bfloat16()
    wide = [tensor.double().requires_grad_() for tensor in given]
    expected = exact(*wide, LENGTHS, 0.25 if scale is None else scale)
    ours = [tensor.requires_grad_() for tensor in given]
    found = bfloat16_attention.attention(*ours, LENGTHS, scale)
    assert found.shape == expected.shape and found.dtype == torch.bfloat16
    pairs = [(found, expected)]
    pairs += zip(
        torch.autograd.grad(found, ours, direction),
        torch.autograd.grad(expected, wide, direction.double()),
        strict=True,
    )
    for mine, theirs in pairs:
        gap = (mine.double() - theirs).norm() / theirs.norm()
        assert gap < 0.01  # bfloat16 keeps 8 bits: a rounding is 0.2 % on average


def test_no_token_sees_a_later_one_or_another_sequence():
    query, key, value = inputs()
    before = bfloat16_attention.attention(query, key, value, LENGTHS, None)
    changed = 5 + 1 + 20
    for tensor in (query, key, value):
        tensor[:, :, changed] += 1.0
    after = bfloat16_attention.attention(query, key, value, LENGTHS, None)
    is_same = (before == after).all(dim=-1).all(dim=-1)[0]
    assert is_same[:changed].all() and is_same[5 + 1 + 33 :].all() and not is_same[changed]


def test_a_gradient_of_a_later_token_does_not_reach_keys_of_another_sequence():
    given = [tensor.requires_grad_() for tensor in inputs()]
    bfloat16_attention.attention(*given, LENGTHS, None)[0, 6:39].float().sum().backward()
    for tensor in given:
        reached = tensor.grad[0].abs().sum(dim=(0, 2)) > 0
        assert not reached[:6].any() and not reached[39:].any()
    assert given[2].grad[0, :, 6:39].abs().sum() > 0


def test_float32_inputs_under_autocast_are_rounded_and_their_gradients_are_wide():
    given = [tensor.float().requires_grad_() for tensor in inputs()]
    with torch.autocast("cpu", torch.bfloat16):
        found = bfloat16_attention.attention(*given, LENGTHS, None)
    narrow = bfloat16_attention.attention(*inputs(), LENGTHS, None)
    assert torch.equal(found, narrow)
    assert all(gradient.dtype == torch.float32 for gradient in torch.autograd.grad(found.float().sum(), given))


def test_a_sequence_has_the_same_bits_beside_any_other():
    together = bfloat16_attention.attention(*inputs(), LENGTHS, None)
    alone = bfloat16_attention.attention(*(tensor[:, :, 6:39] for tensor in inputs()), (33,), None)
    assert torch.equal(together[:, 6:39], alone)


@pytest.mark.parametrize(
    ("has_units", "is_autocast", "dtype", "length", "expected"),
    [
        (True, True, torch.float32, 128, True),
        (True, False, torch.bfloat16, 8, True),
        (False, True, torch.float32, 8, False),
        (True, False, torch.float32, 8, False),
        (True, True, torch.float32, 129, False),
    ],
)
def test_it_is_used_for_short_sequences_where_products_run_in_bfloat16(
    has_units, is_autocast, dtype, length, expected, monkeypatch
):
    monkeypatch.setattr(head_matmul, "cpu_multiplies_bfloat16", lambda: has_units)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
        assert bfloat16_attention.is_faster(torch.zeros(1, 2, 300, 4, dtype=dtype), length) is expected
