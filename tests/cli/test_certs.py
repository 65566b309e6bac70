"""`udo certs` and a platform with TLS: the two commands that a newcomer types, and the messages when something is wrong."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.cli.conftest import Shell
from tests.support.certificates import require_relay
from udo_cli.exits import ExitCode
from udo_interface import connect


def _certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_one_command_makes_an_authority_and_a_certificate_for_each_host_and_client(udo: Shell, tmp_path: Path) -> None:
    top = tmp_path / "certs"
    made = udo("certs", top, "--host", "node2.example.org,10.0.0.2", "--host", "10.0.0.3", "--client", "laptop", "--json").json
    assert made == {"ca": f"{top}/ca.crt", "folders": [f"{top}/{n}" for n in ("node2.example.org", "10.0.0.3", "laptop")]}
    for folder in map(Path, made["folders"]):
        assert (folder / "ca.crt").read_bytes() == (top / "ca.crt").read_bytes()
        assert stat.S_IMODE((folder / "tls.key").stat().st_mode) == stat.S_IMODE((top / "ca.key").stat().st_mode) == 0o600
        _certificate(folder / "tls.crt").verify_directly_issued_by(_certificate(top / "ca.crt"))
    host, client = (_certificate(top / n / "tls.crt").extensions for n in ("node2.example.org", "laptop"))
    names = host.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["node2.example.org", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.2", "127.0.0.1", "::1"]
    assert list(client.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.CLIENT_AUTH]

    before = (top / "10.0.0.3" / "tls.crt").read_bytes()
    udo("certs", top, "--host", "10.0.0.3")
    assert (top / "10.0.0.3" / "tls.crt").read_bytes() != before
    _certificate(top / "10.0.0.3" / "tls.crt").verify_directly_issued_by(_certificate(top / "ca.crt"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "at least one --host"),
        (("--host", "a b"), "letters, digits"),
        (("--client", "../x"), "letters, digits"),
        (("--host", "a,b/c"), "a host's name or IP address, got 'b/c'"),
    ],
)
def test_names_that_are_none_are_refused(udo: Shell, tmp_path: Path, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in udo("certs", tmp_path / "certs", *arguments, code=ExitCode.USAGE).err


def test_an_authority_without_its_key_is_not_replaced(udo: Shell, tmp_path: Path) -> None:
    udo("certs", tmp_path, "--client", "a")
    (tmp_path / "ca.key").unlink()
    assert "has one of ca.crt and ca.key" in udo("certs", tmp_path, "--client", "b", code=ExitCode.USAGE).err


def test_what_cannot_be_by_tls_is_said_before_anything_starts(udo: Shell) -> None:
    assert "needs certificates: --tls FOLDER" in udo("up", "--node-listen", "127.0.0.1:0", code=ExitCode.USAGE).err
    assert "cannot listen on 0.0.0.0:0 without TLS" in udo("up", "--listen", "0.0.0.0:0", code=ExitCode.USAGE).err
    assert not udo.running()


@pytest.mark.long
def test_a_platform_by_tls_is_used_by_commands_and_clients_without_further_settings(
    udo: Shell, operator: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_relay()
    udo("certs", tmp_path / "certs", "--host", "here", "--client", "laptop")
    up = udo("up", "--tls", tmp_path / "certs" / "here", "--warm", "0", "--json").json
    assert up["registry"].startswith("https://127.0.0.1:")
    udo("push", operator("t", plus=1))
    udo("deploy", "t")
    assert "live" in udo("status").out
    port = (udo.home / "node" / "port").read_text().strip()
    monkeypatch.setenv("UDO_HOME", str(udo.home))
    for node in (None, f"https://127.0.0.1:{port}"):
        answers: list[int] = []
        with connect("t", node=node) as client:
            client.add_listener(lambda e, answers=answers: answers.append(e["b"]))  # type: ignore[misc]
            client.send({"a": 1})
            client.flush(30)
        assert answers == [2]

    remote = {"UDO_HOME": str(tmp_path / "elsewhere"), "UDO_REGISTRY": up["registry"], "UDO_TLS": str(tmp_path / "certs" / "laptop")}
    assert [d["name"] for d in udo("ls", "deployments", "--json", **remote).json["deployments"]] == ["t"]
    del remote["UDO_TLS"]
    refused = udo("ls", "deployments", code=ExitCode.UNAUTHORIZED, **remote)
    assert "one side does not accept the other's certificate" in refused.err and "UDO_TLS" in refused.err
    assert udo("up", "--tls", tmp_path / "certs" / "here", "--json").json["started"] == []
