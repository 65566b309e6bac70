"""A registry behind a proxy that is set by the usual environment variables: it is reached, or the error names the variable."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.registry.conftest import Running, start
from udo_protocol.errors import Unavailable, UsageError
from udo_protocol.registry import proxies
from udo_protocol.registry.api import Registry

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the machine's own proxy variables."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A registry whose address is not recognised as this machine's."""
    running = start(tmp_path_factory.mktemp("r") / "data", "--listen", "127.0.0.2:0")
    yield running
    running.stop()


class Forwarding(BaseHTTPRequestHandler):
    """A proxy that forwards requests and records their URLs."""

    passed: list[str]

    def do_GET(self) -> None:
        self.passed.append(self.path)
        asked = urlsplit(self.path)
        onward = http.client.HTTPConnection(asked.netloc)
        onward.request("GET", asked.path, headers=dict(self.headers))
        reply = onward.getresponse()
        body = reply.read()
        self.send_response(reply.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        onward.close()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[tuple[str, list[str]]]:
    """The proxy's address, and the URLs requested through it."""
    passed: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Proxy", (Forwarding,), {"passed": passed}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}", passed
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("variable", "scheme"), [("HTTP_PROXY", "http://"), ("http_proxy", ""), ("ALL_PROXY", "http://")])
def test_a_registry_is_reached_through_a_proxy(
    far: Running, proxy: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch, variable: str, scheme: str
) -> None:
    address, passed = proxy
    monkeypatch.setenv(variable, scheme + address)
    with Registry(far.url) as client:
        assert client.health()["status"] == "ok"
    assert [urlsplit(url).netloc for url in passed] == [urlsplit(far.url).netloc]


@pytest.mark.parametrize("but", ["127.0.0.2", "127.0.0.0/8", "*", "localhost,::1,fd00::/8, 127.0.0.2"])
def test_what_no_proxy_names_is_reached_without(far: Running, monkeypatch: pytest.MonkeyPatch, but: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", but)
    with Registry(far.url) as client:
        assert client.health()["status"] == "ok"


def test_a_proxy_that_does_not_answer_is_named_with_its_variable(far: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@127.0.0.1:9")
    with Registry(far.url) as client, pytest.raises(Unavailable) as failed:
        client.health()
    said = str(failed.value)
    assert "through the proxy that HTTP_PROXY names, http://127.0.0.1:9" in said and "127.0.0.2 in NO_PROXY" in said
    assert "udo up" not in said and "secret" not in said


@pytest.mark.parametrize("value", ["socks://127.0.0.1:9", "ftp://127.0.0.1:9", "http://"])
def test_a_proxy_of_no_kind_that_is_known_is_refused_by_its_variable(far: Running, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ALL_PROXY", value)
    with Registry(far.url) as client, pytest.raises(UsageError, match="ALL_PROXY=.*: expected a proxy as http://host:port"):
        client.health()


@pytest.mark.parametrize("value", ["ftp://user:secret@127.0.0.1:9", "http://user:secret@", "user:secret@"])
def test_no_password_of_a_proxy_that_is_refused_is_shown(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", value)
    with pytest.raises(UsageError, match="HTTP_PROXY=") as refused:
        proxies.to("http://example.org")
    assert "secret" not in str(refused.value) and "user" not in str(refused.value)


def test_an_empty_variable_of_the_lower_case_says_that_there_is_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "")
    assert proxies.to("http://example.org") is None
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", "127.0.0.1:9")
    assert proxies.to("http://example.org") == proxies.Proxy("http://127.0.0.1:9", "http_proxy")


def test_a_registry_of_this_machine_is_reached_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:9")
    running = start(tmp_path / "data")
    try:
        assert running.client().health()["status"] == "ok"
    finally:
        running.stop()


@pytest.mark.parametrize(
    ("entry", "host", "excepted"),
    [
        ("example.org", "example.org", True),
        ("example.org", "a.example.org", True),
        (".example.org", "a.example.org", True),
        ("*.example.org", "a.example.org", True),
        ("EXAMPLE.org", "a.Example.ORG", True),
        ("example.org", "anexample.org", False),
        ("example.org:5080", "example.org", True),
        ("example.org:5081", "example.org", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.0.0.0/8", "example.org", False),
        ("fd00::/8", "fd12::1", True),
        ("[fd00::1]", "fd00::1", True),
        ("fd00::/8", "10.0.0.1", False),
        ("", "example.org", False),
    ],
)
def test_what_no_proxy_means(monkeypatch: pytest.MonkeyPatch, entry: str, host: str, excepted: bool) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", f"other.org,{entry}")
    shown = f"[{host}]" if ":" in host else host
    assert (proxies.to(f"http://{shown}:5080") is None) is excepted
