from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.numerics import head_matmul
from rlhf_core.numerics.head_matmul import cache_blocks, chunks, matmul_dtype, softmax_dtype


@given(st.integers(0, 40), st.integers(1, 12))
def test_chunks_cover_each_row_once_and_none_is_too_large(rows, size):
    pieces = list(chunks(rows, size))
    assert [row for piece in pieces for row in range(rows)[piece]] == list(range(rows))
    assert all(0 < piece.stop - piece.start <= size for piece in pieces)


def test_blocks_of_a_huge_vocabulary_hold_at_least_a_row():
    assert [piece.stop - piece.start for piece in cache_blocks(2, 2**23)] == [1, 1]
    assert list(cache_blocks(0, 10)) == []


@pytest.mark.parametrize(("has_bfloat16", "want"), [(True, torch.bfloat16), (False, torch.float32)])
def test_a_half_precision_that_the_cpu_would_emulate_becomes_float32(monkeypatch, has_bfloat16, want):
    monkeypatch.setattr(head_matmul, "cpu_multiplies_bfloat16", lambda: has_bfloat16)
    weights = torch.zeros(1, 1)
    assert matmul_dtype(weights, weights) == torch.float32
    assert matmul_dtype(weights.bfloat16(), weights.bfloat16()) == want
    assert matmul_dtype(weights.bfloat16(), weights) == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert matmul_dtype(weights, weights) == want
        assert matmul_dtype(weights.double(), weights.double()) == torch.float64


def test_softmax_is_never_in_half_precision():
    halves_and_more = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    assert [softmax_dtype(dtype) for dtype in halves_and_more] == [torch.float32] * 3 + [torch.float64]
