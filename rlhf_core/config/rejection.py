"""Which responses are rejected before anything is learnt from them, and what becomes of them (G3)."""

from __future__ import annotations

import re
from pathlib import Path
from string import Formatter
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from rlhf_core.config.banned_words import banned_phrase
from rlhf_core.config.base import StrictConfig

RejectionPolicy = Literal["resample", "drop", "penalise", "replace"]
RejectionReason = Literal["banned", "banned_word", "too_short", "invalid", "repetitive", "unsafe", "low_reward"]
"""A filter's name and the reason that it gives, the cheapest first."""

SAFE_REPLIES = (
    "I'm sorry, but I can't help with that.",
    "I can't help with this request. If you like, tell me what you want to achieve, and I'll look for a safe way.",
    "That could hurt someone, so I won't help with it. Is there something else that I can do for you?",
)


class SafetyConfig(StrictConfig):
    """A classifier that gives each response a probability of being unsafe."""

    kind: Literal["packaged", "text-classification", "chat"] = Field(
        default="packaged",
        description="packaged: a small word model that comes with the project, a rough sieve; text-classification: a "
        "Hugging Face classifier; chat: a chat model that answers safe or unsafe, as Llama Guard does",
    )
    path: str | None = Field(default=None, description="folder or hub name of the model; not with packaged")
    threshold: float = Field(default=0.5, gt=0, lt=1, description="P(unsafe) from which a response is rejected")
    template: str | None = Field(
        default=None,
        description="text that the model reads, with {response} and where wanted {prompt}. None: text-classification "
        "reads the response alone, chat the model's own chat template of both",
    )
    unsafe_labels: tuple[str, ...] = Field(
        default=(), description="with text-classification: labels whose probabilities add up to P(unsafe)"
    )
    safe_word: str = Field(default="safe", min_length=1, description="with chat: the first word of a good verdict")
    unsafe_word: str = Field(default="unsafe", min_length=1, description="with chat: the first word of a bad verdict")
    verdict_prefix: str = Field(default="", description="with chat: what the model writes before its verdict")
    max_tokens: int = Field(
        default=512, ge=64, description="tokens read at once; a longer response is read in parts, the worst counts"
    )
    batch_size: int = Field(default=16, ge=1, description="texts judged together")

    @field_validator("template")
    @classmethod
    def _template_has_its_places(cls, template: str | None) -> str | None:
        if template is None:
            return None
        try:
            names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
        except ValueError as error:
            raise ValueError(
                f"the template {template!r} is malformed: {error}. Write a brace of the text twice."
            ) from error
        if "response" not in names or not set(names) <= {"prompt", "response"}:
            raise ValueError(
                f"the template has the places {names}; it needs {{response}} and may have {{prompt}}, no other. "
                "Write a brace of the text twice: {{ and }}."
            )
        return template

    @model_validator(mode="after")
    def _kind_has_what_it_needs(self) -> Self:
        is_packaged = self.kind == "packaged"
        if is_packaged != (self.path is None):
            raise ValueError(
                f"safety.kind={self.kind!r} and safety.path={self.path!r} clash: the packaged classifier has no path, "
                "the others need the folder or hub name of their model."
            )
        if is_packaged and self.template is not None:
            raise ValueError(
                "safety.template is for the other kinds; the packaged classifier reads the response alone."
            )
        if (self.kind == "text-classification") != bool(self.unsafe_labels):
            raise ValueError(
                f"safety.kind={self.kind!r} and safety.unsafe_labels={list(self.unsafe_labels)} clash: name the unsafe "
                "labels exactly with kind text-classification, as in unsafe_labels: [toxic]."
            )
        return self


class ReplacementConfig(StrictConfig):
    """Safe replies in place of rejected responses, and where they are learnt from."""

    replies: tuple[str, ...] = Field(default=SAFE_REPLIES, min_length=1, description="one is drawn by the place's seed")
    cache_file: Path | None = Field(
        default=None,
        description="JSON lines `prompt`, `response`: a safe reply to that prompt, taken before one of `replies`; "
        "relative to data.root",
    )
    replay_share: float = Field(
        default=0.25, ge=0, le=1, description="most of an update's ptx documents that are replaced replies; 0: none"
    )
    replay_iterations: int = Field(default=20, ge=1, description="the last iterations whose replies are replayed")

    @field_validator("replies")
    @classmethod
    def _replies_have_text(cls, replies: tuple[str, ...]) -> tuple[str, ...]:
        if any(not reply.strip() for reply in replies):
            raise ValueError("a reply is empty. Give each one some text, or leave it out.")
        return replies


class RejectionConfig(StrictConfig):
    """Bad text is rejected before it is scored (G3), by filters in order of their cost."""

    policy: RejectionPolicy = Field(
        default="resample",
        description="resample: drawn anew with another seed, up to max_attempts; drop: the place stays empty; "
        "penalise: kept with reward.penalties.unsafe; replace: a safe reply goes to the replay buffer and with the "
        "rejected response to the preference set, never into the update",
    )
    policies: dict[RejectionReason, RejectionPolicy] = Field(
        default_factory=dict[RejectionReason, RejectionPolicy], description="other policies for single filters"
    )
    max_attempts: int = Field(default=3, ge=1, le=20, description="samples drawn for one place before it is given up")
    banned_patterns: tuple[str, ...] = Field(default=(), description="regular expressions that reject a response")
    banned_words: tuple[str, ...] = Field(
        default=(), description="words and phrases that reject a response; whole words, in any case and Unicode form"
    )
    banned_words_files: tuple[Path, ...] = Field(
        default=(), description="lists of such words, one a line, # begins a remark; relative to data.root"
    )
    min_response_tokens: int = Field(default=1, ge=0, description="shorter responses are rejected")
    max_repeated_ngram_fraction: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="share of repeated 4-grams above which a text is repetitive; 1 never rejects",
    )
    safety: SafetyConfig | None = Field(default=None, description="safety classifier; None: none")
    min_reward: float | None = Field(
        default=None, description="raw score of the run's scorer below which a response is rejected; None: not asked"
    )
    replacement: ReplacementConfig = Field(default_factory=ReplacementConfig)

    def policy_for(self, reason: RejectionReason) -> RejectionPolicy:
        """What happens to a response that is rejected for that reason."""
        return self.policies.get(reason, self.policy)

    @property
    def may_replace(self) -> bool:
        """Whether a safe reply may take a rejected response's place."""
        return "replace" in (self.policy, *self.policies.values())

    @field_validator("banned_patterns")
    @classmethod
    def _patterns_compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for number, pattern in enumerate(patterns):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"banned_patterns[{number}] = {pattern!r} is no regular expression: {error}. "
                    "Write a plain text with its special characters escaped, e.g. 'a\\.b'."
                ) from error
            if not pattern:
                raise ValueError(f"banned_patterns[{number}] is empty and would reject every response. Leave it out.")
        return patterns

    @field_validator("banned_words")
    @classmethod
    def _words_are_words(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        for word in words:
            banned_phrase(word)
        return words
