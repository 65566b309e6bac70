"""The proxy for an address by the usual environment variables, and the variable that names it.

NO_PROXY may have the forms that several programs understand: names (with subdomains), addresses, ranges of either IP version, and `*`.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from udo_protocol.errors import UsageError

SCHEMES = ("http", "https", "socks5", "socks5h")


@dataclass(frozen=True)
class Proxy:
    """A proxy's URL, and the variable that names it."""

    url: str
    variable: str

    def __str__(self) -> str:
        return f"the proxy that {self.variable} names, {_shown(self.url)}"


def to(url: str) -> Proxy | None:
    """The proxy for this address, or None. UsageError names a variable that cannot be used."""
    asked = urlsplit(url)
    host = asked.hostname or ""
    found = next((p for name in (f"{asked.scheme}_proxy", "all_proxy") if (p := _given(name))), None)
    if found is None or _excepted(host, asked.port):
        return None
    given = found.url if "://" in found.url else f"http://{found.url}"
    if urlsplit(given).scheme not in SCHEMES or not urlsplit(given).hostname:
        raise UsageError(
            f"{found.variable}={_shown(found.url)}: expected a proxy as {', '.join(f'{s}://host:port' for s in SCHEMES)}; set it to one, "
            f"or name {host} in NO_PROXY"
        )
    return Proxy(given, found.variable)


def _given(name: str) -> Proxy | None:
    """The proxy in this variable, in Python's order: lower case first; an empty value means none."""
    for variable in (name, name.upper()):
        if (value := os.environ.get(variable)) is not None:
            return Proxy(value.strip(), variable) if value.strip() else None
    return None


def _shown(url: str) -> str:
    """The URL without user and password."""
    before, _, place = url.rpartition("@")
    scheme, separator, _ = before.partition("://")
    return f"{scheme}{separator}{place}" if separator else place


def _excepted(host: str, port: int | None) -> bool:
    given = _given("no_proxy")
    return given is not None and any(_matches(entry.strip(), host, port) for entry in given.url.split(","))


def _matches(entry: str, host: str, port: int | None) -> bool:
    if entry == "*":
        return True
    address = _network(host)
    if (network := _network(entry.strip("[]"))) is not None:
        return address is not None and address.version == network.version and address.subnet_of(network)  # type: ignore[arg-type]
    name, _, only = entry.partition(":")
    if not name or (only and only != str(port)):
        return False
    if address is not None:
        return name == host
    return f".{host}".lower().endswith(f".{name.removeprefix('*').removeprefix('.')}".lower())


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
