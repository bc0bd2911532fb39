"""Talks to one vLLM server: requests, and the errors that they can end in."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from rlhf_core.config.vllm import VllmConfig
from rlhf_core.errors import ConfigError, EngineError, RolloutServerLost, StaleEngine

_QUICK_SECONDS = 10.0


class BadAnswer(EngineError):
    """A server answered, but not what it was asked for."""


class Hung(RolloutServerLost):
    """A server gave no answer in time."""


class VllmClient:
    """One server; may be used by many threads at once."""

    def __init__(self, url: str, settings: VllmConfig, connections: int) -> None:
        self.url = url
        self.settings = settings
        self._model: str | None = None
        key = os.environ.get(settings.api_key_environment)
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            limits=httpx.Limits(max_connections=connections + 2, max_keepalive_connections=connections + 2),
            trust_env=False,
        )

    def complete(self, body: Mapping[str, Any]) -> Any:
        """The answer to one completion request.

        Raises:
            RolloutServerLost: the server is gone, failed inside, or gave no answer within `request_seconds`.
            BadAnswer: the answer is no JSON, or the server refuses the request.
        """
        asked = {"model": self.model(), **body}
        return self._post("/v1/completions", self.settings.request_seconds, asked)

    def is_ready(self) -> bool:
        """Whether it answers to a question about its health."""
        try:
            return self._http.get("/health", timeout=_QUICK_SECONDS).status_code == 200
        except (httpx.HTTPError, RuntimeError):  # RuntimeError: closed meanwhile, since the server is started anew
            return False

    def model(self) -> str:
        """The name of what it serves."""
        if self._model is None:
            answer = self._read(self._request("GET", "/v1/models", _QUICK_SECONDS, None))
            try:
                self._model = str(answer["data"][0]["id"])
            except (KeyError, IndexError, TypeError) as error:
                raise BadAnswer(f"{self.url}/v1/models names no model: {str(answer)[:200]}") from error
        return self._model

    def load_weights(self, folder: Path, hashes: Mapping[str, str]) -> None:
        """Make the server take the weights of that folder; it samples nothing meanwhile and keeps no old cache.

        Raises:
            ConfigError: it was started without the extension or without its development mode.
            StaleEngine: it refuses the files, because it cannot read them or they are not whole.
            RolloutServerLost, BadAnswer: as for `complete`.
        """
        seconds = self.settings.sync_seconds
        self._post("/pause?mode=abort", seconds, None)
        call = {"method": "rlhf_load_weights", "args": [str(folder.absolute()), json.dumps(dict(hashes))]}
        answer = self._post("/collective_rpc", seconds, {**call, "timeout": seconds})
        results = answer.get("results") if isinstance(answer, dict) else None
        if not isinstance(results, list) or not results or not all(isinstance(one, dict) for one in results):
            raise BadAnswer(f"{self.url} did not say that it has the new weights: {str(answer)[:200]}")
        problems = [str(one["problem"]) for one in results if one.get("problem")]
        if problems:
            raise StaleEngine(
                f"{self.url} refuses the weights of {folder}: {problems[0]}. Check the storage that trainer and server "
                "share; a damaged checkpoint is found by `rlhf checkpoints verify`."
            )
        cleared = self._post("/reset_prefix_cache", seconds, None)
        if not (isinstance(cleared, dict) and cleared.get("success", True)):
            raise BadAnswer(f"{self.url} could not drop the cache of the old weights: {str(cleared)[:200]}")
        self._post("/resume", seconds, None)

    def prompt_logprobs(self, ids: Sequence[int]) -> list[float]:
        """Log-probs in nats of each token after the first, given those before it."""
        body = {"prompt": list(ids), "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
        answer = self.complete(body)
        try:
            found = answer["choices"][0]["prompt_logprobs"][1:]
            return [float(place[str(token)]["logprob"]) for place, token in zip(found, ids[1:], strict=True)]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise BadAnswer(f"{self.url} gives no log-probs of a prompt: {str(answer)[:200]}") from error

    def first_logprobs(self, ids: Sequence[int], temperature: float, count: int) -> dict[str, float]:
        """Log-probs of the likeliest tokens after a prompt, at a temperature, by the token's name."""
        body = {
            "prompt": list(ids),
            "max_tokens": 1,
            "temperature": temperature,
            "logprobs": count,
            "return_tokens_as_token_ids": True,
        }
        answer = self.complete(body)
        try:
            found = answer["choices"][0]["logprobs"]["top_logprobs"][0]
            return {str(name): float(logprob) for name, logprob in found.items()}
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise BadAnswer(f"{self.url} gives no log-probs of a token: {str(answer)[:200]}") from error

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def _post(self, path: str, seconds: float, body: Mapping[str, Any] | None) -> Any:
        return self._read(self._request("POST", path, seconds, body))

    def _request(self, method: str, path: str, seconds: float, body: Mapping[str, Any] | None) -> httpx.Response:
        limits = httpx.Timeout(seconds, connect=min(seconds, _QUICK_SECONDS), pool=None)
        try:
            return self._http.request(method, path, json=body, timeout=limits)
        except httpx.TimeoutException as error:
            raise Hung(f"{self.url} gave no answer to {path} within {seconds:g} s; it hangs.") from error
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: closed meanwhile
            raise RolloutServerLost(f"{self.url} cannot be reached ({type(error).__name__}: {error}).") from error

    def _read(self, response: httpx.Response) -> Any:
        path, text = response.url.path, response.text[:300]
        if response.status_code in (401, 403):
            raise ConfigError(
                f"{self.url} refuses the key. Put the servers' key into ${self.settings.api_key_environment}."
            )
        if response.status_code == 404 and not path.startswith("/v1/"):
            raise ConfigError(
                f"{self.url} does not know {path}: it was started without VLLM_SERVER_DEV_MODE=1. docs/rollouts.md "
                "has the command."
            )
        if response.status_code >= 500 and "rlhf_load_weights" in text:
            raise ConfigError(
                f"{self.url} was started without --worker-extension-cls rlhf_weight_sync.WeightSync. docs/rollouts.md "
                "has the command."
            )
        if response.status_code >= 500:
            raise RolloutServerLost(f"{self.url} failed inside ({response.status_code} for {path}): {text}")
        if response.status_code >= 400:
            raise BadAnswer(f"{self.url} refuses {path} ({response.status_code}): {text}")
        if not response.content:
            return {}
        try:
            return response.json()
        except ValueError as error:
            raise BadAnswer(f"{self.url} answers {path} with no JSON: {text!r}") from error
