from __future__ import annotations

import pytest

from rlhf_core.rewards.penalties import ending_penalties


def test_each_ending_has_its_own_penalty():
    endings = ["natural", "early", "truncated", "early"]
    assert ending_penalties(endings, early_penalty=-2.0, truncation_penalty=-1.0).tolist() == [0.0, -2.0, -1.0, -2.0]
    assert ending_penalties([], early_penalty=-2.0, truncation_penalty=-1.0).tolist() == []


def test_an_unknown_ending_is_refused():
    with pytest.raises(KeyError, match="eos"):
        ending_penalties(["eos"], early_penalty=-2.0, truncation_penalty=0.0)
