"""Who is told of what happens in a run (F5). Addresses are secrets, so a configuration names only where they lie."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlhf_core.config.base import StrictConfig

NotificationKind = Literal["failure", "crash", "retry", "rollback", "stop", "completion"]

EnvironmentVariable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
SecretBlock = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]


class UrlSources(StrictConfig):
    """Where the channels' Apprise URLs are read from when a message is sent; each may hold several, by blanks."""

    env: tuple[EnvironmentVariable, ...] = Field(default=(), description="names of environment variables")
    prefect_secrets: tuple[SecretBlock, ...] = Field(default=(), description="names of Prefect Secret blocks")


class NotificationConfig(StrictConfig):
    """Messages to people; without a source of URLs none are sent."""

    kinds: tuple[NotificationKind, ...] = Field(
        default=("failure", "crash", "retry", "rollback", "stop", "completion"), description="what is told"
    )
    urls_from: UrlSources = Field(default_factory=UrlSources)
    timeout_seconds: float = Field(
        default=10.0, gt=0, le=120, description="longest that one message may hold up the run, over all channels"
    )
    log_tail_lines: int = Field(default=20, ge=0, le=200, description="last log lines in a message about an error")

    @property
    def is_on(self) -> bool:
        return bool(self.urls_from.env or self.urls_from.prefect_secrets)
