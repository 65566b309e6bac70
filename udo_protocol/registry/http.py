"""HTTP to the registry: one client per process and address, errors of udo_protocol.errors, brief retries. Knows no endpoints.

If a registry has several processes, the client uses one until it does not answer, then the next one.

httpx is imported at the first call, so that importing this module costs nothing.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar
from urllib.parse import urlsplit

from udo_protocol import errors
from udo_protocol.certificates import Tls, fresh_context
from udo_protocol.errors import ProtocolError, UdoError, Unavailable, Untrusted, UsageError
from udo_protocol.registry import proxies

if TYPE_CHECKING:
    import httpx

Json = dict[str, Any]
Bytes = bytes | memoryview
T = TypeVar("T")
# Idempotent calls are repeated for this long: enough for a broken connection, too short to be noticed.
BRIEFLY_S = 1.0
# A lost report may fail an update, so retries outlast a restart of the registry (about 2 s).
RESTART_S = 10.0
# The longest wait for a connection: hosts that are up accept one within a few ms.
CONNECT_S = 5.0


class HttpClient:
    """A peer at `url`: `http://host:port`, `https://...` or `unix:/path.sock`; several, separated by commas, are processes of one registry.
    Safe to share between threads and after a fork.

    `tls`: for https, the authority that vouches for the peer, and this side's certificate; by default the system's authorities, and no
    certificate.
    """

    def __init__(
        self, url: str, token: str | None = None, user: str | None = None, timeout_s: float = 30.0, tls: Tls | None = None
    ) -> None:
        self._urls = [given.strip().rstrip("/") for given in url.split(",") if given.strip()]
        if not self._urls or not all(known.startswith(("http://", "https://", "unix:")) for known in self._urls):
            raise UsageError(
                f"registry address {url!r}: expected http://host:port, https://host:port or unix:/path, or several of a registry that has "
                "several processes, separated by commas"
            )
        name = "".join(c if c.isascii() and c.isprintable() else "?" for c in user or "")
        self._headers = {k: v for k, v in (("Authorization", f"Bearer {token.strip()}" if token else ""), ("X-Udo-User", name)) if v}
        self._timeout_s, self._tls = timeout_s, tls
        self._clients: dict[tuple[int, str], httpx.Client] = {}
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """The address in use."""
        return self._urls[0]

    @property
    def several(self) -> bool:
        """Whether there are other addresses."""
        return len(self._urls) > 1

    def _turn(self, away: str) -> bool:
        """Switch to the next address, since `away` did not answer; returns whether there is another one."""
        with self._lock:
            if self._urls[0] == away:  # another thread may have switched already
                self._urls = [*self._urls[1:], away]
            return self._urls[0] != away

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for (pid, _), client in clients.items():
            if pid == os.getpid():
                client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _http(self, url: str) -> httpx.Client:
        with self._lock:
            key = (os.getpid(), url)
            if key not in self._clients:
                self._clients[key] = self._new_client(url)
            return self._clients[key]

    def _new_client(self, url: str) -> httpx.Client:
        import httpx

        unix = url.removeprefix("unix:") if url.startswith("unix:") else None
        proxy = _proxy(url)
        try:
            transport = httpx.HTTPTransport(
                uds=unix,
                proxy=proxy.url if proxy else None,
                # Loading certificates takes 20 ms, which plain HTTP does not need.
                verify=fresh_context(self._tls) if self._tls and url.startswith("https:") else url.startswith("https:"),
                limits=httpx.Limits(keepalive_expiry=60.0),
            )
        except ImportError as e:  # the package for SOCKS is missing
            raise UsageError(f"{proxy} cannot be used: {e}. Or name the registry's host in NO_PROXY") from e
        return httpx.Client(
            base_url="http://registry" if unix else url,
            headers=self._headers,
            transport=transport,
            timeout=httpx.Timeout(self._timeout_s, connect=min(self._timeout_s, CONNECT_S)),
        )

    def _away(self, e: Exception, url: str) -> Unavailable | Untrusted:
        """The error to raise for `e`; unless TLS failed, the next call goes to another address."""
        if why := _tls_failure(e):
            shown = f"the folder of {self._tls.ca}" if self._tls else "none"
            return Untrusted(
                f"no connection to the registry at {url}, since one side does not accept the other's certificate: {why}. "
                f"Certificates of this side: {shown} (UDO_TLS, spark.udo.tls, --tls; docs/executors.md)"
            )
        why, proxy = f"{type(e).__name__}: {e}", _proxy(url)
        self._turn(url)
        if proxy is not None:
            return Unavailable(
                f"the registry at {url} does not answer through {proxy} ({why}); if none is needed, name {urlsplit(url).hostname} in "
                "NO_PROXY"
            )
        at = " and ".join(sorted(self._urls))
        return Unavailable(f"the registry at {at} does not answer ({why}); start one with: udo up, or set UDO_REGISTRY")

    def _send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        read_s: float | None = None,
        retry_s: float | None = None,
    ) -> httpx.Response:
        def once() -> httpx.Response:
            import httpx

            timeout = httpx.Timeout(read_s or self._timeout_s, connect=min(self._timeout_s, CONNECT_S))
            for others in reversed(range(len(self._urls))):
                url = self.url
                try:
                    response = self._http(url).request(method, path, content=content, headers=headers, timeout=timeout)
                except (httpx.HTTPError, httpx.InvalidURL) as e:
                    # No part of the request was sent: any request may go to the next process.
                    if others and isinstance(e, httpx.ConnectError | httpx.ConnectTimeout) and not _tls_failure(e) and self._turn(url):
                        continue
                    raise self._away(e, url) from e
                try:
                    return self._checked(response)
                except Unavailable:  # by the registry's own answer
                    self._turn(url)
                    raise
            raise AssertionError("the last address returns or raises")

        if retry_s is None and method in ("GET", "HEAD"):
            retry_s = BRIEFLY_S
        return retrying(once, retry_s) if retry_s else once()

    def _json(self, method: str, path: str, body: Json | None = None, *, retry_s: float | None = None, read_s: float | None = None) -> Json:
        content = None if body is None else json.dumps(body).encode()
        headers = None if body is None else {"Content-Type": "application/json"}
        response = self._send(method, path, content=content, headers=headers, retry_s=retry_s, read_s=read_s)
        try:
            return dict(response.json())
        except ValueError as e:
            raise ProtocolError(f"{method} {self.url}{path}: expected JSON, got {response.content[:80]!r}; is this a udo registry?") from e

    def _checked(self, response: httpx.Response) -> httpx.Response:
        if response.is_success:
            return response
        try:
            said = response.json()
            error = said["error"] if "error" in said else {"message": said["errors"][0]["message"], **said["errors"][0]["detail"]}
            raise errors.by_code(error["code"], error["message"])
        except (ValueError, KeyError, TypeError, IndexError):
            pass
        if response.status_code == 404:
            raise errors.NotFound(f"{response.request.method} {response.request.url}: not found")
        raise UdoError(f"{response.request.method} {response.request.url}: HTTP {response.status_code}: {response.text[:200]!r}")

    def _stream(self, method: str, path: str, body: Json | None = None, headers: Mapping[str, str] | None = None) -> Streamed:
        import httpx

        for others in reversed(range(len(self._urls))):
            url = self.url
            client = self._new_client(url)
            try:
                response = client.send(client.build_request(method, path, json=body, headers=headers), stream=True)
                if not response.is_success:
                    response.read()
                self._checked(response)
                return Streamed(client, response, url)
            except BaseException as e:
                client.close()
                if others and isinstance(e, httpx.ConnectError | httpx.ConnectTimeout) and not _tls_failure(e) and self._turn(url):
                    continue
                if isinstance(e, Unavailable):
                    self._turn(url)
                if isinstance(e, httpx.HTTPError | httpx.InvalidURL):
                    raise self._away(e, url) from e
                raise
        raise AssertionError("the last address returns or raises")

    def _download(self, path: str, take: Callable[[Bytes], object], digest: Callable[[Bytes], object]) -> None:
        """Pass the body of a GET, piece by piece, to `take` and, perhaps in another thread, to `digest`."""
        url = self.url
        if not _near(url) or url.startswith("https:"):
            streamed = self._stream("GET", path)
            with streamed as response:
                for piece in self._guarded(response.iter_raw(), streamed.url):
                    digest(piece)
                    take(piece)
            return
        import httpx

        from udo_protocol.pouring import pour
        from udo_protocol.registry import body as registry_body

        with closing(registry_body.PlainConnection(url, self._timeout_s)) as connection:
            try:
                connection.request("GET", registry_body.prefix(url) + path, headers=self._headers)
                got = connection.getresponse()
                if got.status != 200:
                    self._checked(httpx.Response(got.status, content=got.read(), request=httpx.Request("GET", f"http://registry{path}")))
                pour(registry_body.filler(got), take, digest)
            except (OSError, registry_body.HTTPException) as e:
                raise self._away(e, url) from e

    def _guarded(self, items: Iterator[T], url: str) -> Iterator[T]:
        import httpx

        try:
            yield from items
        except httpx.HTTPError as e:
            raise self._away(e, url) from e


def _proxy(url: str) -> proxies.Proxy | None:
    """The proxy for this address; none for addresses on this machine."""
    return None if _near(url) else proxies.to(url)


def _near(url: str) -> bool:
    """Whether the address is on this machine."""
    return url.startswith("unix:") or urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def _tls_failure(e: BaseException) -> str:
    """The TLS error among the causes of `e`; '' if there is none."""
    import ssl

    broken_off = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
    cause: BaseException | None = e
    while cause is not None:
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, broken_off):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return ""


class Streamed:
    """A response that is read as it comes, and has to be closed.

    It has a client of its own: a stream that nobody reads to its end is closed by the garbage collector, which may run while
    the same thread holds the lock of a shared client's connections, and that lock is not reentrant (encode/httpcore#990). `_open` holds
    the response until it is closed, so that its socket is not collected earlier.
    """

    _open: ClassVar[set[Streamed]] = set()

    def __init__(self, client: httpx.Client, response: httpx.Response, url: str) -> None:
        self._client, self.url = client, url
        self._response = response
        self._open.add(self)

    def __enter__(self) -> httpx.Response:
        return self._response

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the response and its connection; may be called again."""
        self._response.close()
        self._client.close()
        self._open.discard(self)


def retrying(step: Callable[[], T], timeout_s: float = BRIEFLY_S) -> T:
    """Repeat an idempotent step for up to `timeout_s` while the registry is away: it may just be restarting."""
    from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

    wait = wait_exponential(multiplier=0.05, max=0.5)
    return Retrying(retry=retry_if_exception_type(Unavailable), stop=stop_after_delay(timeout_s), wait=wait, reraise=True)(step)
