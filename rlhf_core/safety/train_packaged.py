"""Trains the packaged safety classifier on the project's own texts: `python -m rlhf_core.safety.train_packaged`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize

from rlhf_core.data.store import write_bytes
from rlhf_core.safety.packaged import WEIGHTS, PackagedClassifier, ngrams
from rlhf_core.safety.training_texts import SAFE_TEXTS, UNSAFE_TEXTS

LEAST_TEXTS = 2
"""An n-gram of fewer training texts gets no weight."""
DOUBT = 0.85
"""Logits taken off the bias: the classes are even in training, whereas most responses of a policy are harmless."""
_DIGITS = 3


def train(unsafe: Sequence[str], safe: Sequence[str], *, strength: float = 3.0) -> PackagedClassifier:
    """Fit a logistic regression with classes weighted evenly.

    Args:
        unsafe: texts that are to be rejected.
        safe: texts that are to pass.
        strength: inverse of the L2 penalty.
    """
    vectorizer: Any = cast(Any, CountVectorizer)(analyzer=_ngrams, binary=True, min_df=LEAST_TEXTS)
    features: Any = normalize(vectorizer.fit_transform([*unsafe, *safe]).astype(np.float64))
    labels = np.array([1] * len(unsafe) + [0] * len(safe))
    model: Any = LogisticRegression(C=strength, class_weight="balanced", max_iter=2000, tol=1e-8)
    model.fit(features, labels)
    names: Any = vectorizer.get_feature_names_out()
    weights = {str(name): round(float(w), _DIGITS) for name, w in zip(names, model.coef_[0], strict=True)}
    return PackagedClassifier(round(float(model.intercept_[0]) - DOUBT, _DIGITS), weights)


def write_weights(classifier: PackagedClassifier, path: Path) -> None:
    """Write the weights as JSON that a person can read, an n-gram a line."""
    content = {"bias": classifier.bias, "weights": dict(sorted(classifier.weights.items()))}
    write_bytes(path, (json.dumps(content, indent=0, ensure_ascii=False) + "\n").encode())


def _ngrams(text: str) -> list[str]:
    return list(ngrams(text))


if __name__ == "__main__":
    write_weights(train(UNSAFE_TEXTS, SAFE_TEXTS), Path(__file__).with_name(WEIGHTS))
