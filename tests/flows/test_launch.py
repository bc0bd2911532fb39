"""Whose fault a failed request is."""

from __future__ import annotations

import httpx
import pytest

from flows.launch import is_about
from flows.server import ServerHandle

SERVER = ServerHandle(api_url="http://127.0.0.1:4200/api", ui_url="http://127.0.0.1:4200")
OURS, FOREIGN = "http://127.0.0.1:4200/api/flows/", "https://hub.example/api/models"


@pytest.mark.parametrize(("url", "is_the_servers"), [(OURS, True), (FOREIGN, False)])
def test_only_a_request_to_the_server_speaks_of_it(url, is_the_servers):
    assert is_about(SERVER, httpx.ConnectError("refused", request=httpx.Request("GET", url))) == is_the_servers
    assert not is_about(SERVER, httpx.ConnectError("refused"))


@pytest.mark.parametrize(
    ("url", "status", "is_the_servers"), [(OURS, 503, True), (OURS, 404, False), (FOREIGN, 503, False)]
)
def test_a_server_that_cannot_serve_is_as_good_as_none_and_one_that_refuses_is_not(url, status, is_the_servers):
    request = httpx.Request("GET", url)
    error = httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))
    assert is_about(SERVER, error) == is_the_servers
