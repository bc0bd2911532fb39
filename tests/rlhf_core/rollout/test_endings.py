from __future__ import annotations

import pytest

from rlhf_core.errors import DataError
from rlhf_core.rollout.endings import classify_ending


def test_case_E03_a_stop_sequence_is_a_natural_end():
    assert classify_ending("stop_sequence", 8, 5) == "natural"
    assert classify_ending("eos", 8, 5) == "natural"


def test_case_E06_the_engine_decides_and_not_the_length():
    assert [classify_ending("length", 5, 5), classify_ending("eos", 8, 5)] == ["truncated", "natural"]
    assert classify_ending("length", 1, 5) == "truncated"


@pytest.mark.parametrize(("tokens", "want"), [(0, "early"), (4, "early"), (5, "natural")])
def test_an_end_before_the_least_length_is_early(tokens, want):
    assert classify_ending("eos", tokens, 5) == want


def test_an_unknown_finish_reason_is_refused():
    with pytest.raises(DataError, match=r"finish_reason='abort' is unknown.*'eos', 'length', 'stop_sequence'"):
        classify_ending("abort", 8, 5)
