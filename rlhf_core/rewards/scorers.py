"""Who gives a response its raw score: the reward model, or a function of the user's (R3)."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rlhf_core.config.run import RunConfig
from rlhf_core.data.store import MANIFEST, RunFolder, file_sha256
from rlhf_core.engines.protocols import Scorer
from rlhf_core.errors import ConfigError, DataError, RlhfError
from rlhf_core.models.reward_model import DialogueForm, RewardModel, load_reward_model

_TRAINED_MODEL = "model"


class RewardModelScorer:
    """Scores prompt and response with a reward model; a text is scored as it stands, with EOS after it.

    So a cut text is scored as if it ended there; it comes here only where `reward.score_truncated` asks for that (A5).
    """

    def __init__(self, reward_model: RewardModel, batch_size: int) -> None:
        self.reward_model = reward_model
        self.batch_size = batch_size

    def score(self, rows: Sequence[Mapping[str, Any]]) -> list[float]:
        """One raw score per row, in batches of like length; needs `prompt` and `response`."""
        dialogues = [self.reward_model.encode_dialogue(row["prompt"], row["response"]) for row in rows]
        return [float(score) for score in self.reward_model.score_dialogues(dialogues, self.batch_size)]


class CallableScorer:
    """Scores with `f(prompts: list[str], responses: list[str]) -> list[float]`, given by import path."""

    def __init__(self, path: str, batch_size: int) -> None:
        """Import the function; the current folder counts as a place to import from.

        Raises:
            ConfigError: the module cannot be imported, or has no such function.
        """
        self.path = path
        self.batch_size = batch_size
        self.function = _imported(path)

    def score(self, rows: Sequence[Mapping[str, Any]]) -> list[float]:
        """One raw score per row; None counts as NaN, which excludes the response later (N03).

        Raises:
            DataError: the function raised, or did not return one number per response.
        """
        scores: list[float] = []
        for start in range(0, len(rows), self.batch_size):
            batch = rows[start : start + self.batch_size]
            scores += self._score_batch([row["prompt"] for row in batch], [row["response"] for row in batch])
        return scores

    def _score_batch(self, prompts: list[str], responses: list[str]) -> list[float]:
        try:
            returned = self.function(prompts, responses)
        except RlhfError:
            raise  # a scorer that knows our errors says itself whether a retry can help
        except Exception as error:
            raise DataError(
                f"reward.callable {self.path} raised {type(error).__name__}: {error}. It was called with "
                f"{len(prompts)} prompts and responses; mend it and resume the run."
            ) from error
        try:
            scores = list(returned)
        except TypeError as error:
            raise self._refusal(f"it returned a {type(returned).__name__}") from error
        if isinstance(returned, (str, bytes, Mapping)):
            raise self._refusal(f"it returned a {type(returned).__name__}")
        if len(scores) != len(responses):
            raise self._refusal(f"it returned {len(scores)} values for {len(responses)} responses")
        return [self._number(place, score) for place, score in enumerate(scores)]

    def _number(self, place: int, score: Any) -> float:
        if score is None:
            return float("nan")
        if not hasattr(score, "__float__"):
            raise self._refusal(f"value {place} is a {type(score).__name__}: {score!r}")
        try:
            return float(score)
        except (TypeError, ValueError, RuntimeError) as error:
            raise self._refusal(f"value {place} is no single number: {error}") from error

    def _refusal(self, found: str) -> DataError:
        return DataError(
            f"reward.callable {self.path}: {found}. It must return one number per response, as a list: "
            "f(prompts: list[str], responses: list[str]) -> list[float]."
        )


def build_scorer(
    config: RunConfig, folder: RunFolder, tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> Scorer:
    """The configured scorer: the callable, a given reward model, or the one that the run has trained.

    Raises:
        ConfigError: it cannot be imported or loaded, or no reward model has been trained yet.
    """
    reward = config.reward
    if reward.callable is not None:
        return CallableScorer(reward.callable.path, reward.batch_size)
    path = config.reward_model.path
    if path is None:
        trained = folder.reward_model / _TRAINED_MODEL
        if not trained.is_dir():
            raise ConfigError(f"there is no reward model yet in {trained}. Run the reward-model stage first.")
        path = str(trained)
    return RewardModelScorer(load_reward_model(path, DialogueForm.of(config), device), reward.batch_size)


def require_importable(config: RunConfig) -> None:
    """Import the callable that scores, so that a fault shows before anything is sampled.

    Raises:
        ConfigError: it cannot be imported or is no function.
    """
    if config.reward.callable is not None:
        _imported(config.reward.callable.path)


def scorer_identity(config: RunConfig, folder: RunFolder) -> str:
    """What decides whether stored scores are still this scorer's."""
    if config.reward.callable is not None:
        return config.reward.callable.path
    path = Path(config.reward_model.path) if config.reward_model.path else folder.reward_model / _TRAINED_MODEL
    manifest = path / MANIFEST
    return file_sha256(manifest) if manifest.is_file() else str(path)


def _imported(path: str) -> Callable[[list[str], list[str]], Any]:
    module_name, _, attribute = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"reward.callable.path={path!r}: the module {module_name!r} cannot be imported "
            f"({type(error).__name__}: {error}). Install it, or start the run in the folder that holds it."
        ) from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            names = sorted(key for key, value in vars(found).items() if callable(value) and not key.startswith("_"))
            raise ConfigError(
                f"reward.callable.path={path!r}: {module_name} has no {attribute!r}. Its functions: {names[:20]}."
            )
        found = getattr(found, name)
    if not callable(found):
        raise ConfigError(f"reward.callable.path={path!r} is a {type(found).__name__}; expected a function.")
    return found
