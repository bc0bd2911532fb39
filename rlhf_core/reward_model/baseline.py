"""What words and length alone can tell: the accuracy that a reward model should beat (W2)."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, hstack, vstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

MAX_FEATURES = 20_000
_STRENGTH = 1.0


def word_baseline_margins(train: pd.DataFrame, held_out: pd.DataFrame) -> NDArray[np.float64]:
    """Train on `train`, and return the margins chosen - rejected on `held_out`, in log-odds.

    Features of a response are its TF-IDF words and word pairs and the logarithm of its length; a logistic regression
    without intercept learns on their differences, so that swapping a pair changes the sign.

    Args:
        train: columns `chosen`, `rejected`.
        held_out: the same columns.
    """
    texts = pd.concat([train["chosen"], train["rejected"]])
    words = TfidfVectorizer(
        ngram_range=(1, 2), min_df=2 if len(train) > 100 else 1, sublinear_tf=True, max_features=MAX_FEATURES
    )
    words.fit(texts)
    differences = _differences(words, train)
    features = vstack([differences, -differences]).tocsr()
    labels = np.repeat([1, 0], len(train))
    model = LogisticRegression(C=_STRENGTH, fit_intercept=False, max_iter=2000)
    model.fit(features, labels)
    return cast(NDArray[np.float64], model.decision_function(_differences(words, held_out)))


def _differences(words: TfidfVectorizer, pairs: pd.DataFrame) -> Any:
    length = np.log1p(pairs["chosen"].str.len().to_numpy()) - np.log1p(pairs["rejected"].str.len().to_numpy())
    return hstack(
        [words.transform(pairs["chosen"]) - words.transform(pairs["rejected"]), csr_matrix(length[:, None])]
    ).tocsr()
