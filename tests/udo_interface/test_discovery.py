"""The places where registry and node manager are looked for, their order, and the error when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from udo_interface.discovery import NODE_SOCKET, certificates, node_address, registry_url
from udo_protocol.certificates import Tls
from udo_protocol.errors import Unavailable


def up(home: Path) -> dict[str, str]:
    """Make the files that `udo up` leaves behind; return the environment."""
    (home / "node").mkdir()
    (home / "node" / "node.sock").touch()
    (home / "registry").mkdir()
    (home / "registry" / "address").write_text("http://127.0.0.1:5000\n")
    return {"UDO_HOME": str(home)}


def test_the_setting_comes_before_the_variable_before_the_home(tmp_path: Path) -> None:
    env = up(tmp_path)
    assert node_address(None, env) == str(tmp_path / "node" / "node.sock")
    assert node_address(None, {**env, "UDO_NODE": "/b"}) == "/b"
    assert node_address("/a", {**env, "UDO_NODE": "/b"}) == "/a"
    assert registry_url(None, env) == "http://127.0.0.1:5000"
    assert registry_url("", {**env, "UDO_REGISTRY": "http://b"}) == "http://b"
    assert registry_url("http://a", {**env, "UDO_REGISTRY": "http://b"}) == "http://a"


def test_certificates_are_those_of_the_setting_the_variable_or_the_home(tmp_path: Path) -> None:
    env = {"UDO_HOME": str(tmp_path)}
    assert certificates(None, env) is None
    (tmp_path / "tls").mkdir()
    assert certificates(None, env) == Tls.folder(tmp_path / "tls")
    assert certificates("", {**env, "UDO_TLS": "/b"}) == Tls.folder("/b")
    assert certificates("/a", {**env, "UDO_TLS": "/b"}) == Tls(Path("/a/ca.crt"), Path("/a/tls.crt"), Path("/a/tls.key"))


def test_no_node_manager_names_every_place_that_was_looked_at(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        node_address(None, {"UDO_HOME": str(tmp_path)})
    for place in ("spark.udo.node", "UDO_NODE", str(tmp_path / "node" / "node.sock"), str(NODE_SOCKET), "udo up"):
        assert place in str(caught.value)


def test_no_registry_names_every_place_that_was_looked_at(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        registry_url(None, {"UDO_HOME": str(tmp_path)})
    for place in ("spark.udo.registry", "UDO_REGISTRY", str(tmp_path / "registry" / "address"), "absent", "udo up"):
        assert place in str(caught.value)
