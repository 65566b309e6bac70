"""The executor's JVM connects to queue servers on other hosts over mutual TLS, and says what is wrong with a certificate."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from py4j.protocol import Py4JJavaError

from tests.conftest import Servers, require
from tests.support.certificates import replace as replace_files
from tests.support.certificates import signed
from tests.support.tls_front import tls_front
from udo_cli.platform.authority import Authority
from udo_interface.spark import jar, jvm_path
from udo_protocol.certificates import Tls
from udo_protocol.errors import Unavailable
from udo_protocol.queue.connection import Connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long
USER, PASSWORD = "jvm", "secret"
SIZES = (0, 1, 16_384, 16_385, 700_000, 3_000_000)


@dataclass
class Server:
    """A server that is reached over TLS and requires client certificates."""

    address: str
    run_id: str
    authority: Path
    client: Tls


@pytest.fixture(scope="module")
def server(running_servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with contextlib.closing(Connection(running_servers.queue_socket)) as conn:
        conn.call("ACL", "SETUSER", USER, "reset", "on", f">{PASSWORD}", "~*", "+@all")
        authority = tmp_path_factory.mktemp("tls")
        with tls_front(signed(authority, "server"), running_servers.queue_socket) as address:
            yield Server(address, conn.run_id, authority, signed(authority, "client"))
        conn.call("ACL", "DELUSER", USER)


class Refused(Exception):
    """An error on the JVM path, with its class and text."""


@pytest.fixture
def connect(spark: SparkSession, server: Server) -> Iterator[Any]:
    """A function that connects as a lane on the JVM path does, or raises Refused; its attribute `call` sends a command on a connection."""
    try:
        jar.jar(spark.version)
    except Unavailable as e:
        require("java", str(e))
    jvm_path.calls(spark)
    jvm: Any = spark.sparkContext._jvm
    loader = spark._jsparkSession.sharedState().jarClassLoader()
    [constructor] = loader.loadClass("org.apache.spark.sql.udo.Connection").getConstructors()
    allocator = getattr(jvm.org.apache.spark.sql.util, "ArrowUtils$").__getattr__("MODULE$").rootAllocator()
    made = []

    def connected(tls: Tls | None = None, address: str = server.address, run_id: str = server.run_id) -> Any:
        folder = str((tls or server.client).ca.parent)
        arguments = jvm.java.util.ArrayList()
        for each in (address, USER, PASSWORD, run_id, jvm.scala.Option.apply(folder), allocator):
            arguments.add(each)
        try:
            made.append(constructor.newInstance(arguments.toArray()))
        except Py4JJavaError as e:
            raise Refused(e.java_exception.getCause().toString()) from None
        return made[-1]

    def call(conn: Any, *arguments: Any) -> Any:
        return conn.call(jvm.scala.jdk.javaapi.CollectionConverters.asScala(list_of(arguments)).toSeq())

    def list_of(items: tuple[Any, ...]) -> Any:
        found = jvm.java.util.ArrayList()
        for item in items:
            found.add(item)
        return found

    connected.call = call  # type: ignore[attr-defined]
    yield connected
    for each in made:
        each.close()


EC, RSA = ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 2048)
PKCS8, TRADITIONAL = serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL


def resigned(server: Server, folder: Path, key: Any, form: Any, *names: x509.GeneralName) -> Tls:
    """Issue the client's certificate again for this key, stored in this format, and for a server with these names, if there are any."""
    authority, template = Authority.of(server.authority), x509.load_pem_x509_certificate(server.client.certificate.read_bytes())
    extensions = [e for e in template.extensions if not names or e.oid != x509.SubjectAlternativeName.oid]
    builder = x509.CertificateBuilder(
        template.issuer,
        template.subject,
        key.public_key(),
        x509.random_serial_number(),
        template.not_valid_before_utc,
        template.not_valid_after_utc,
        extensions,
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    pem = serialization.Encoding.PEM
    own = replace(server.client, ca=folder / "ca.crt", certificate=folder / "tls.crt", key=folder / "tls.key")
    own.ca.write_bytes(server.client.ca.read_bytes())
    own.certificate.write_bytes(builder.sign(authority.key, hashes.SHA256()).public_bytes(pem))
    own.key.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    return own


@pytest.mark.short
def test_values_of_every_size_pass_both_ways(connect: Any) -> None:
    conn = connect()
    for size in SIZES:
        value = bytes(i * 7 % 251 for i in range(min(size, 1000))) * max(size // 1000, 1)
        assert connect.call(conn, "SET", "udo:t:tls", value) == "OK"
        assert bytes(connect.call(conn, "GET", "udo:t:tls")) == value
    assert connect.call(conn, "DEL", "udo:t:tls") == 1


@pytest.mark.short
def test_a_server_of_another_authority_is_not_spoken_to(connect: Any, server: Server, tmp_path: Path) -> None:
    other = signed(tmp_path / "another", "x")
    with pytest.raises(Refused, match=r"Untrusted: .*not accepted: .*; expected a valid one .* that ca\.crt in .*another"):
        connect(other)


@pytest.mark.parametrize(("expired", "why"), [(False, "unknown_ca"), (True, "certificate_expired")])
def test_a_client_that_is_refused_is_told_why(connect: Any, server: Server, tmp_path: Path, expired: bool, why: str) -> None:
    own = signed(server.authority, "late", expired=True) if expired else signed(tmp_path / "another", "intruder")
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for name, data in (("ca.crt", server.client.ca), ("tls.crt", own.certificate), ("tls.key", own.key)):
        (mixed / name).write_bytes(data.read_bytes())
    with pytest.raises(Refused, match=f"Untrusted: the server on rediss://.* refuses this side's certificate: .*{why}"):
        connect(Tls.folder(mixed))


@pytest.mark.parametrize(
    ("host", "expired", "why"), [("127.0.0.1", True, "validity check failed: NotAfter"), ("10.9.9.9", False, "127.0.0.1")]
)
def test_a_server_with_a_certificate_that_is_expired_or_of_another_host_is_not_spoken_to(
    connect: Any, running_servers: Servers, tmp_path: Path, host: str, expired: bool, why: str
) -> None:
    with (
        tls_front(signed(tmp_path, "server", host, expired=expired), running_servers.queue_socket) as address,
        pytest.raises(Refused, match=f"Untrusted: .*not accepted: .*{why}"),
    ):
        connect(signed(tmp_path, "client"), address)


def test_a_port_where_nobody_listens_or_speaks_tls_is_named(connect: Any, server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"rediss://127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(Refused, match=f"ServerLost: no server answers on {address}: .*refused"):
        connect(address=address)
    with pytest.raises(Refused, match=r"ServerLost: the server on rediss://.* was restarted: expected run other, found"):
        connect(run_id="other")


def test_a_host_may_have_any_name(connect: Any) -> None:
    for host in ("no_such_host.invalid", "[::1]"):
        with pytest.raises(Refused, match="ServerLost: no server answers on rediss://"):
            connect(address=f"rediss://{host}:1")


@pytest.mark.parametrize(
    ("named", "asked", "why"),
    [
        ("spark_worker_1", "Spark_Worker_1", None),
        ("*.my_net.example", "a_1.my_net.example", None),
        ("*.example", "a_1.my_net.example", r"it is for \*\.example, not for a_1\.my_net\.example"),
        ("*", "spark_worker_1", r"it is for \*, not for spark_worker_1"),
        ("spark_worker_2", "spark_worker_1", "it is for spark_worker_2, not for spark_worker_1"),
        (None, "spark_worker_1", "it is for no host's name, not for spark_worker_1"),
    ],
)
def test_a_certificate_is_for_the_host_with_an_underscore_that_it_names(
    spark: SparkSession,
    connect: Any,
    server: Server,
    running_servers: Servers,
    tmp_path: Path,
    named: str | None,
    asked: str,
    why: str | None,
) -> None:
    jvm: Any = spark.sparkContext._jvm
    loader = spark._jsparkSession.sharedState().jarClassLoader()

    def our(name: str) -> Any:
        return loader.loadClass(f"org.apache.spark.sql.udo.{name}$").getField("MODULE$").get(None)

    own = signed(server.authority, "server") if named is None else resigned(server, tmp_path, EC, PKCS8, x509.DNSName(named))
    with tls_front(own, running_servers.queue_socket) as address:
        # The name does not resolve: the socket is connected to this host's address, and the certificate must be for the name.
        port = int(address.rpartition(":")[2])
        folder = jvm.scala.Option.apply(str(server.client.ca.parent))
        arguments = jvm.java.util.ArrayList()
        arguments.add(our("SocketStream").tcp("127.0.0.1", port))
        arguments.add(our("Certificates").engine(asked, port, address, folder))
        arguments.add(jvm.java.lang.System.nanoTime() + 60 * 10**9)
        [constructor] = loader.loadClass("org.apache.spark.sql.udo.TlsStream").getConstructors()
        if why is None:
            constructor.newInstance(arguments.toArray()).close()
            return
        with pytest.raises(Py4JJavaError) as caught:
            constructor.newInstance(arguments.toArray())
        assert re.fullmatch(f"javax.net.ssl.SSLHandshakeException: {why}", caught.value.java_exception.getCause().toString())


@pytest.mark.parametrize("address", ["redis://127.0.0.1:1", "rediss://127.0.0.1", "rediss://:6379", "rediss://h:1/2", "rediss://h:99999"])
def test_an_address_without_tls_or_without_a_port_is_refused(connect: Any, address: str) -> None:
    with pytest.raises(Refused, match=f"UsageError: expected the path of a Unix socket or rediss://host:port, got '{address}'"):
        connect(address=address)


def test_files_that_hold_no_certificate_are_named(connect: Any, server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    with pytest.raises(Refused, match=r"UsageError: .*own/ca\.crt cannot be read: .*expected a folder with"):
        connect(Tls.folder(folder))
    for name, broken, why in (
        ("tls.key", "", r"there is no private key in .*own/tls\.key"),
        (
            "tls.key",
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "is encrypted, expected one without",
        ),
        ("tls.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", r"expected a certificate in .*own/tls\.crt"),
        ("ca.crt", "", r"expected certificates in PEM form in .*own/ca\.crt"),
    ):
        for part, data in zip(
            ("ca.crt", "tls.crt", "tls.key"), (server.client.ca, server.client.certificate, server.client.key), strict=True
        ):
            (folder / part).write_bytes(data.read_bytes())
        (folder / name).write_text(broken)
        with pytest.raises(Refused, match=f"UsageError: .*{why}"):
            connect(Tls.folder(folder))


def test_new_certificates_are_used_for_new_connections(connect: Any, server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    replace_files(folder, server.client)
    open_before = connect(Tls.folder(folder))
    replace_files(folder, signed(tmp_path / "another", "x"))
    with pytest.raises(Refused, match="Untrusted"):
        connect(Tls.folder(folder))
    assert connect.call(open_before, "ECHO", "on"), "an open connection goes on"
    replace_files(folder, signed(server.authority, "again"))
    assert connect.call(connect(Tls.folder(folder)), "PING") == "PONG"


@pytest.mark.parametrize(
    ("key", "form", "begins"),
    [
        (EC, PKCS8, "BEGIN PRIVATE KEY"),
        (EC, TRADITIONAL, "BEGIN EC PRIVATE KEY"),
        (RSA, PKCS8, "BEGIN PRIVATE KEY"),
        (RSA, TRADITIONAL, "BEGIN RSA PRIVATE KEY"),
        (ed25519.Ed25519PrivateKey.generate(), PKCS8, "BEGIN PRIVATE KEY"),
    ],
    ids=["EC", "EC as cert-manager writes it", "RSA", "RSA as cert-manager writes it", "Ed25519"],
)
def test_keys_of_every_usual_kind_and_form_are_read(connect: Any, server: Server, tmp_path: Path, key: Any, form: Any, begins: str) -> None:
    own = resigned(server, tmp_path, key, form)
    assert begins in own.key.read_text()
    assert connect.call(connect(own), "PING") == "PONG"
