from __future__ import annotations

import pytest

from rlhf_core.control.entropy_coef import entropy_coef_rule
from rlhf_core.errors import ConfigError


@pytest.mark.parametrize(("vocab_size", "want"), [(2, 0.00693147), (100, 0.0460517), (49_152, 0.1080267)])
def test_the_rule_is_a_hundredth_of_the_logarithm(vocab_size, want):
    assert entropy_coef_rule(vocab_size) == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("vocab_size", [0, 1])
def test_a_vocabulary_without_choice_is_refused(vocab_size):
    with pytest.raises(ConfigError, match="vocab_size"):
        entropy_coef_rule(vocab_size)
