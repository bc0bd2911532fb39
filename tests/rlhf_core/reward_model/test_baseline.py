import numpy as np
import pandas as pd

from rlhf_core.reward_model.baseline import word_baseline_margins


def pairs(chosen: str, rejected: str, count: int = 12) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    words = ["red", "blue", "green", "warm"]

    def text(word: str) -> str:
        return " ".join([*rng.choice(words, 3), word])

    return pd.DataFrame(
        {"chosen": [text(chosen) for _ in range(count)], "rejected": [text(rejected) for _ in range(count)]}
    )


def test_it_learns_a_word_that_is_preferred():
    margins = word_baseline_margins(pairs("thanks", "never"), pairs("thanks", "never", 5))
    assert (margins > 0).all()


def test_swapping_chosen_and_rejected_changes_the_sign():
    held_out = pairs("thanks", "never", 5)
    swapped = held_out.rename(columns={"chosen": "rejected", "rejected": "chosen"})
    train = pairs("thanks", "never")
    np.testing.assert_allclose(word_baseline_margins(train, swapped), -word_baseline_margins(train, held_out))


def test_it_learns_that_the_longer_wins_where_words_say_nothing():
    train = pd.DataFrame({"chosen": ["a1 " * n for n in range(10, 40)], "rejected": ["a1 " * 3] * 30})
    held_out = pd.DataFrame({"chosen": ["zz " * 9], "rejected": ["zz " * 2]})
    assert word_baseline_margins(train, held_out)[0] > 0
