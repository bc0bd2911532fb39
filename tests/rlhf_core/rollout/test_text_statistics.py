from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.rollout.text_statistics import distinct_fraction, repeated_ngram_fraction

tokens = st.lists(st.integers(0, 3), max_size=20)


def test_a_loop_is_nearly_all_repetition():
    # a b a b a b a b: five 4-grams, of which abab and baba are new.
    assert repeated_ngram_fraction("abababab", 4) == 3 / 5


@given(tokens, st.integers(1, 5))
def test_the_repeated_share_counts_every_occurrence_after_the_first(text, n):
    counts = Counter(tuple(text[i : i + n]) for i in range(max(0, len(text) - n + 1)))
    total = sum(counts.values())
    want = sum(count - 1 for count in counts.values()) / total if total else 0.0
    assert abs(repeated_ngram_fraction(text, n) - want) < 1e-12


def test_distinct_share_is_over_all_texts_and_does_not_join_them():
    # ab, bc | ab: three bigrams, two of them distinct; c-a across the texts does not count.
    assert distinct_fraction(["abc", "ab"], 2) == 2 / 3
    assert distinct_fraction(["a", ""], 2) == 0.0
