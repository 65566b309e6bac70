"""HTTP to the registry: one client per process, errors as those of udo_protocol.errors, brief retries. Knows no endpoint.

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
from udo_protocol.errors import ProtocolError, UdoError, Unavailable, UsageError

if TYPE_CHECKING:
    import httpx

Json = dict[str, Any]
Bytes = bytes | memoryview
T = TypeVar("T")
# Idempotent calls are repeated for this long: enough for a broken connection, too short to be noticed.
BRIEFLY_S = 1.0
# A report that is lost may fail an update, so it outlasts a restart of the registry (about 2 s).
RESTART_S = 10.0


class HttpClient:
    """A peer at `url`: `http://host:port`, `https://...` or `unix:/path.sock`. Safe to share between threads and after a fork."""

    def __init__(self, url: str, token: str | None = None, user: str | None = None, timeout_s: float = 30.0) -> None:
        self.url = url.strip().rstrip("/")
        if not self.url.startswith(("http://", "https://", "unix:")):
            raise UsageError(f"registry address {url!r}: expected http://host:port, https://host:port or unix:/path")
        name = "".join(c if c.isascii() and c.isprintable() else "?" for c in user or "")
        self._headers = {k: v for k, v in (("Authorization", f"Bearer {token.strip()}" if token else ""), ("X-Udo-User", name)) if v}
        self._timeout_s = timeout_s
        self._near = self.url.startswith("unix:") or urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1")
        self._client: tuple[int, httpx.Client] | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client and client[0] == os.getpid():
            client[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _http(self) -> httpx.Client:
        with self._lock:
            if self._client is None or self._client[0] != os.getpid():
                self._client = (os.getpid(), self._new_client())
            return self._client[1]

    def _new_client(self) -> httpx.Client:
        import httpx

        unix = self.url.removeprefix("unix:") if self.url.startswith("unix:") else None
        return httpx.Client(
            base_url="http://registry" if unix else self.url,
            headers=self._headers,
            transport=httpx.HTTPTransport(uds=unix) if unix else None,
            # Loading certificates takes 20 ms that plain HTTP need not pay.
            verify=self.url.startswith("https:"),
            # A proxy must not stand between processes of one machine.
            trust_env=not self._near,
            timeout=httpx.Timeout(self._timeout_s, connect=min(self._timeout_s, 5.0)),
            limits=httpx.Limits(keepalive_expiry=60.0),
        )

    def _away(self, e: Exception) -> Unavailable:
        why = f"{type(e).__name__}: {e}"
        return Unavailable(f"the registry at {self.url} does not answer ({why}); start one with: udo up, or set UDO_REGISTRY")

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

            timeout = httpx.Timeout(read_s or self._timeout_s, connect=min(self._timeout_s, 5.0))
            try:
                response = self._http().request(method, path, content=content, headers=headers, timeout=timeout)
            except (httpx.HTTPError, httpx.InvalidURL) as e:
                raise self._away(e) from e
            return self._checked(response)

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

        client = self._new_client()
        try:
            response = client.send(client.build_request(method, path, json=body, headers=headers), stream=True)
            if not response.is_success:
                response.read()
            self._checked(response)
        except BaseException as e:
            client.close()
            if isinstance(e, httpx.HTTPError | httpx.InvalidURL):
                raise self._away(e) from e
            raise
        return Streamed(client, response)

    def _download(self, path: str, take: Callable[[Bytes], object], digest: Callable[[Bytes], object]) -> None:
        """Give the body of a GET, piece by piece, to `take` and, in another thread perhaps, to `digest`."""
        if not self._near or self.url.startswith("https:"):
            with self._stream("GET", path) as response:
                for piece in self._guarded(response.iter_raw()):
                    digest(piece)
                    take(piece)
            return
        import httpx

        from udo_protocol.pouring import pour
        from udo_protocol.registry import body as registry_body

        with closing(registry_body.PlainConnection(self.url, self._timeout_s)) as connection:
            try:
                connection.request("GET", registry_body.prefix(self.url) + path, headers=self._headers)
                got = connection.getresponse()
                if got.status != 200:
                    self._checked(httpx.Response(got.status, content=got.read(), request=httpx.Request("GET", f"http://registry{path}")))
                pour(registry_body.filler(got), take, digest)
            except (OSError, registry_body.HTTPException) as e:
                raise self._away(e) from e

    def _guarded(self, items: Iterator[T]) -> Iterator[T]:
        import httpx

        try:
            yield from items
        except httpx.HTTPError as e:
            raise self._away(e) from e


class Streamed:
    """A response that is read as it comes and closed in the end.

    It has a client of its own: a stream that nobody reads to its end is closed by the garbage collector, which may run while
    the same thread holds the lock of a shared client's connections, and that lock is not reentrant (encode/httpcore#990). Until it
    is closed it is held here, so that its socket is not collected before.
    """

    _open: ClassVar[set[Streamed]] = set()

    def __init__(self, client: httpx.Client, response: httpx.Response) -> None:
        self._client = client
        self._response = response
        self._open.add(self)

    def __enter__(self) -> httpx.Response:
        return self._response

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it and its connection; again is harmless."""
        self._response.close()
        self._client.close()
        self._open.discard(self)


def retrying(step: Callable[[], T], timeout_s: float = BRIEFLY_S) -> T:
    """Repeat an idempotent step while the registry is away, briefly: it may just be restarting."""
    from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

    wait = wait_exponential(multiplier=0.05, max=0.5)
    return Retrying(retry=retry_if_exception_type(Unavailable), stop=stop_after_delay(timeout_s), wait=wait, reraise=True)(step)
