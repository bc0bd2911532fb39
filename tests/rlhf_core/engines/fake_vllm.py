"""A small HTTP server that speaks as vLLM does, and misbehaves on demand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VOCABULARY = 64
EOS = 2

Answer = Callable[["FakeVllm", dict[str, Any], dict[str, Any]], Any]


class FakeVllm:
    """`answer` may change what a completion returns; `weights` are what it was last told to load."""

    def __init__(self, canary: list[float], *, slowness_seconds: float = 0.0) -> None:
        self.canary = canary
        self.slowness_seconds = slowness_seconds
        self.answer: Answer = lambda server, body, good: good
        self.on_load: dict[str, Any] = {"seconds": 0.1, "tensors": 3}
        self.is_tempered = True
        self.has_extension = self.is_dev = True
        self.asked: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.busy = self.most_busy = 0
        self.lock = threading.Lock()
        self.dead = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def die(self) -> None:
        """Refuse connections from now on; requests under way get no answer."""
        self.dead.set()
        self._server.shutdown()
        self._server.server_close()

    def good(self, body: dict[str, Any]) -> dict[str, Any]:
        """A whole answer: the request's seed decides the tokens."""
        if "prompt_logprobs" in body:
            pairs = zip(body["prompt"][1:], self.canary, strict=True)
            said = [None, *({str(token): {"logprob": logprob}} for token, logprob in pairs)]
            return {"choices": [{"prompt_logprobs": said}]}
        if body.get("return_tokens_as_token_ids"):
            scale = 1 / body["temperature"] if self.is_tempered else 1.0
            top = {f"token_id:{place}": -scale * place for place in range(1, 6)}
            return {"choices": [{"logprobs": {"top_logprobs": [top]}}]}
        ids = [3 + body["seed"] % 50, 5, EOS]
        choice = {
            "token_ids": ids,
            "logprobs": {"token_logprobs": [-0.5 - place for place in range(len(ids))]},
            "finish_reason": "stop",
            "stop_reason": EOS,
        }
        return {"choices": [choice]}

    def _complete(self, body: dict[str, Any]) -> Any:
        good = self.good(body)
        if "seed" not in body:
            return good
        with self.lock:
            self.asked.append(body)
            self.busy += 1
            self.most_busy = max(self.most_busy, self.busy)
        try:
            time.sleep(self.slowness_seconds)
            return self.answer(self, body, good)
        finally:
            with self.lock:
                self.busy -= 1

    def _rpc(self) -> tuple[int, Any]:
        if not self.has_extension:
            return 500, {"error": {"message": "'CPUWorker' object has no attribute 'rlhf_load_weights'"}}
        return 200, {"results": [self.on_load]}

    def respond(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and answer of one call."""
        self.calls.append(path)
        name = path.split("?")[0]
        if name == "/v1/completions":
            found = self._complete(body)
            return found if isinstance(found, tuple) else (200, found)
        if name == "/health":
            return 200, {}
        if name == "/v1/models":
            return 200, {"data": [{"id": "policy"}]}
        if not self.is_dev:
            return 404, {"detail": "Not Found"}
        if name == "/collective_rpc":
            return self._rpc()
        return 200, {"success": True, "status": "ok"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None: ...

            def do_GET(self) -> None:
                self._reply({})

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                self._reply(json.loads(self.rfile.read(length) or b"{}"))

            def _reply(self, body: dict[str, Any]) -> None:
                status, answer = fake.respond(self.path, body)
                if fake.dead.is_set():
                    self.close_connection = True
                    return
                content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        return Handler
