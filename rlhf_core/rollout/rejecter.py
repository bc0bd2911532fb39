"""The filters and replies of a run, and what their verdicts depend on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.config.run import RunConfig
from rlhf_core.data.store import file_sha256
from rlhf_core.rollout.filters import FilterChain, RewardFilter, SafetyFilter, rule_filters
from rlhf_core.rollout.rejection import Rejecter
from rlhf_core.rollout.replacement import Replies
from rlhf_core.rollout.word_lists import read_phrases, read_replies
from rlhf_core.safety.build import safety_identity

if TYPE_CHECKING:
    from rlhf_core.runtime import Runtime


def build_rejecter(runtime: Runtime) -> Rejecter:
    """All filters that are configured, the cheapest first.

    Raises:
        ConfigError: a file or the safety classifier cannot be read.
    """
    config, rejection = runtime.config, runtime.config.rollout.rejection
    filters = rule_filters(rejection, [phrase for path in _word_files(config) for phrase in read_phrases(path)])
    if rejection.safety is not None:
        filters.append(SafetyFilter(runtime.safety(), rejection.safety.threshold))
    if rejection.min_reward is not None:
        filters.append(RewardFilter(runtime.scorer(), rejection.min_reward, config.reward.scores_truncated))
    cache = _cache_file(config)
    by_prompt = {} if cache is None else read_replies(cache)
    replies = Replies(rejection.replacement.replies, by_prompt, runtime.tokenizer, config.seed)
    return Rejecter(FilterChain(filters), replies)


def require_readable(config: RunConfig) -> None:
    """Read the files of words and replies, so that a fault shows before anything is sampled.

    Raises:
        ConfigError: one cannot be read, or holds what it should not.
    """
    for path in _word_files(config):
        read_phrases(path)
    cache = _cache_file(config)
    if cache is not None:
        read_replies(cache)


def rejecter_settings(config: RunConfig) -> dict[str, Any]:
    """What decides about a response beside `rollout.rejection` itself: files' contents, classifier and scorer."""
    rejection, cache = config.rollout.rejection, _cache_file(config)
    return {
        "banned_words_files": [file_sha256(path) for path in _existing(_word_files(config))],
        "cache_file": None if cache is None else [file_sha256(path) for path in _existing([cache])],
        "safety": None if rejection.safety is None else safety_identity(rejection.safety),
        "scorer": None if rejection.min_reward is None else _scorer_settings(config),
    }


def _scorer_settings(config: RunConfig) -> list[Any]:
    of_callable = None if config.reward.callable is None else config.reward.callable.path
    return [config.reward.scorer, of_callable, config.reward_model.path, config.reward.scores_truncated]


def _word_files(config: RunConfig) -> list[Path]:
    return [config.data.root.expanduser() / path for path in config.rollout.rejection.banned_words_files]


def _cache_file(config: RunConfig) -> Path | None:
    path = config.rollout.rejection.replacement.cache_file
    return None if path is None else config.data.root.expanduser() / path


def _existing(paths: list[Path]) -> list[Path]:
    """A file that is gone is reported where it is read; an iteration that is finished does not need it."""
    return [path for path in paths if path.is_file()]
