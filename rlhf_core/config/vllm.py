"""vLLM servers that sample (G1, G2)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from rlhf_core.config.base import StrictConfig

_CANARY_NATS = {"float32": 1e-3, "bfloat16": 1.0, "float16": 0.2}
"""float32 agrees to 4e-5 in fact; bfloat16 was seen to differ by 0.37."""
_SET_BY_US = ("--model", "--served-model-name", "--host", "--port", "--dtype", "--max-model-len", "--logprobs-mode")


class VllmConfig(StrictConfig):
    """Servers that are there already (`urls`), or one that the run starts itself in vLLM's own environment."""

    urls: tuple[str, ...] = Field(default=(), description="servers, http(s); none: the run starts one itself")
    environment: Path | None = Field(
        default=None, description="vLLM's virtual environment; None is where `rlhf setup-vllm` makes it"
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(default="float32", description="precision of the servers")
    kv_cache_gib: int = Field(default=1, ge=1, description="key-value cache of our server on a CPU")
    max_model_len: int | None = Field(
        default=None, ge=2, description="longest prompt and response; None: the two limits of rollout together"
    )
    threads: int | None = Field(default=None, ge=1, description="CPU threads of our server; None: every core")
    request_seconds: float = Field(default=600.0, gt=0, description="a request without an answer marks a hung server")
    request_retries: int = Field(default=3, ge=0, description="further tries of one request")
    restarts: int = Field(default=2, ge=0, description="restarts of our server while one batch is sampled")
    start_seconds: float = Field(default=600.0, gt=0, description="time that a server may take to start")
    sync_seconds: float = Field(default=600.0, gt=0, description="time that new weights may take")
    canary_nats: float | None = Field(
        default=None, gt=0, description="allowed difference to the trainer's log-probs; None depends on dtype"
    )
    api_key_environment: str = Field(
        default="RLHF_VLLM_API_KEY", description="variable that holds the servers' key, where they ask for one"
    )
    extra_arguments: tuple[str, ...] = Field(default=(), description="further arguments of our server")

    @property
    def canary_limit_nats(self) -> float:
        """The largest difference at which a server counts as having the policy's weights."""
        return _CANARY_NATS[self.dtype] if self.canary_nats is None else self.canary_nats

    @field_validator("urls")
    @classmethod
    def _urls_are_http(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"{url!r} is no http(s) address. Give e.g. http://10.0.0.5:8000.")
            if parts.username or parts.password:
                raise ValueError(
                    "an address of a vLLM server holds a password. Leave it out; a key goes into the variable that "
                    "rollout.vllm.api_key_environment names."
                )
        plain = tuple(url.rstrip("/") for url in urls)
        if len(set(plain)) < len(plain):
            raise ValueError(f"rollout.vllm.urls names a server twice: {', '.join(plain)}.")
        return plain

    @field_validator("extra_arguments")
    @classmethod
    def _arguments_are_free(cls, arguments: tuple[str, ...]) -> tuple[str, ...]:
        taken = sorted({word.split("=")[0] for word in arguments} & set(_SET_BY_US))
        if taken:
            raise ValueError(f"rollout.vllm.extra_arguments holds {', '.join(taken)}, which the run itself sets.")
        return arguments

    @model_validator(mode="after")
    def _arguments_are_of_our_server(self) -> Self:
        if self.urls and self.extra_arguments:
            raise ValueError(
                "rollout.vllm.extra_arguments are those of a server that the run starts, but rollout.vllm.urls names "
                "servers that are there already. Leave out one of them."
            )
        return self
