"""The registry over HTTPS: both sides show certificates, which may be replaced while it runs; without TLS it stays on its own host."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import httpx
import pytest

from tests.conftest import bound
from tests.registry.conftest import FakeNode, image, start
from tests.support.certificates import replace, signed
from tests.support.forked import run
from udo_protocol import errors
from udo_protocol.registry.api import Registry


def test_over_https_the_registry_takes_pushes_updates_and_long_polls_of_those_who_show_a_certificate(tmp_path: Path) -> None:
    authority = tmp_path / "certs"
    running = start(tmp_path / "data", "--listen", "127.0.0.1:0", tls=signed(authority, "registry"))
    try:
        assert running.url.startswith("https://127.0.0.1:")
        running.tls = signed(authority, "node")
        client = running.client()
        for version in ("1", "2"):
            one = image("op", version, code=f"x = {version}\n" * 50_000)
            one.push(client, tmp_path)
        client.deploy("op", "op", "1")
        with FakeNode(running.client(), "n1"):
            assert [e["phase"] for e in client.update("op", "2")][-1] == "done"
        for others, expected in ((None, "Certificates of this side: none"), (signed(tmp_path / "other", "x"), "certificate")):
            with Registry(running.url, running.token, tls=others) as nobody, pytest.raises(errors.Untrusted, match=expected):
                nobody.health()
        trusting = ssl.create_default_context(cafile=running.tls.ca)
        with pytest.raises(httpx.HTTPError):  # a client that trusts the registry, but has no certificate itself
            httpx.get(f"{running.url}/healthz", verify=trusting)
        with pytest.raises(httpx.HTTPError):
            httpx.get(running.url.replace("https:", "http:") + "/healthz")
    finally:
        assert running.stop() == 0


def test_a_certificate_without_the_hosts_name_is_not_accepted(tmp_path: Path) -> None:
    running = start(tmp_path / "data", "--listen", "127.0.0.1:0", tls=signed(tmp_path / "certs", "registry", "10.9.9.9"))
    try:
        with pytest.raises(errors.Untrusted, match="doesn't match|mismatch"):
            running.client().health()
    finally:
        running.stop()


def test_new_certificates_take_effect_with_the_next_connection(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    mine = signed(first, "client")
    running = start(tmp_path / "data", "--listen", "127.0.0.1:0", tls=signed(first, "registry"))
    try:
        with Registry(running.url, tls=mine) as lasting, Registry(running.url, tls=signed(first, "former")) as former:
            assert lasting.health()["status"] == former.health()["status"] == "ok"
            key = first / "registry" / "tls.key"
            key.write_bytes(signed(second, "else").key.read_bytes())
            with Registry(running.url, tls=mine) as late:
                assert late.health()["status"] == "ok", "files that do not fit change nothing"
            assert "new certificates cannot be used" in running.log
            replace(first / "registry", signed(second, "registry"))
            with pytest.raises(errors.Untrusted), Registry(running.url, tls=mine) as late:
                late.health()
            replace(first / "client", signed(second, "client"))
            lasting.close()  # the next call connects again
            assert lasting.health()["status"] == "ok", "the same client, by the new files"
            assert former.health()["status"] == "ok", "its connection goes on"
    finally:
        running.stop()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "10.0.0.2:0", "registry.example.org:0"])
def test_without_tls_the_registry_listens_on_no_address_that_other_hosts_reach(tmp_path: Path, listen: str) -> None:
    done = run("registry", ["--data", str(tmp_path / "data"), "--listen", listen], environment=os.environ, timeout_s=bound(60))
    assert done.returncode == 2
    assert f"cannot listen on {listen} without TLS" in done.stderr and "--tls FOLDER" in done.stderr


def test_files_that_are_no_certificates_are_told_at_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    folder.mkdir()
    done = run("registry", ["--data", str(tmp_path / "data"), "--tls", str(folder)], environment=os.environ, timeout_s=bound(60))
    assert done.returncode == 2
    assert f"{folder}/ca.crt cannot be read" in done.stderr and "udo certs" in done.stderr
