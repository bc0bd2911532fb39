"""Whose fault a failed request is."""

from __future__ import annotations

import httpx
import pytest

from flows.launch import is_about
from flows.server import ServerHandle


@pytest.mark.parametrize(
    ("url", "is_the_servers"), [("http://127.0.0.1:4200/api/flows/", True), ("https://hub.example/api/models", False)]
)
def test_only_a_request_to_the_server_speaks_of_it(url, is_the_servers):
    handle = ServerHandle(api_url="http://127.0.0.1:4200/api", ui_url="http://127.0.0.1:4200")
    assert is_about(handle, httpx.ConnectError("refused", request=httpx.Request("GET", url))) == is_the_servers
    assert not is_about(handle, httpx.ConnectError("refused"))
