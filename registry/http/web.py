"""Code that all routes share: the services, the caller, validated request bodies, answers and errors as JSON.

Errors are `{"error": {code, message, retry}}` with the codes of udo_protocol.errors, below /v2 in the form of the OCI
distribution specification. Writes need the token, and so do a few reads.
"""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from flask import Response, current_app, request
from pydantic import BaseModel, ValidationError
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session
from werkzeug.exceptions import HTTPException

from registry import oci_errors
from registry.config import RegistrySettings
from registry.content import repositories
from registry.content.uploads import Uploads
from registry.domain.application_managers import ApplicationManagers
from registry.domain.audit import Caller
from registry.domain.presence import Presence, disks, drained, presence, presumed, reachable
from registry.domain.replicas import Nodes
from registry.http import auth
from registry.store import postgresql
from registry.store.blobs import Blobs
from registry.store.hub import Hub
from registry.store.store import Store
from udo_protocol import errors
from udo_protocol.clock import SteadyTime
from udo_protocol.errors import UdoError, UsageError

Model = TypeVar("Model", bound=BaseModel)
# Callers of an operator need the number of a plan, and change nothing that anybody sees by taking one.
WRITES_WITHOUT_TOKEN = frozenset(("api.number_plan",))
# Reads for nodes, pushers and operators of the platform only; all other reads are open.
READS_WITH_TOKEN = frozenset(("api.wanted", "api.audit_rows", "backups.make", "oci.upload_status"))
STATUS: dict[type[UdoError], int] = {
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.SchemaError: 409,
    errors.Unauthorized: 401,
    errors.UsageError: 400,
    errors.Unavailable: 503,
    errors.WaitTimeout: 504,
}


@dataclass
class Services:
    """The parts that the routes use; one set per application."""

    config: RegistrySettings
    store: Store
    hub: Hub
    blobs: Blobs
    uploads: Uploads
    tokens: tuple[str, ...]
    clock: Callable[[], float] = field(default_factory=SteadyTime)
    wanted: tuple[int, bytes] = (-1, b"")  # (generation, its answer to all nodes)

    def __post_init__(self) -> None:
        self.started = self.clock()
        self.managers = ApplicationManagers(self.store, self.clock, self.presence)

    def presence(self, session: Session) -> Presence:
        """Nodes heard from lately, and the others."""
        return presence(session, self.live_since)

    @property
    def live_since(self) -> float:
        """A node is live if its last heartbeat was at this time or later."""
        return self.clock() - self.config.node_live_s

    def suspected(self, session: Session) -> Nodes:
        """The nodes by whether they were heard from within suspect_s, after which others take their places."""
        there = presence(session, self.clock() - self.config.suspect_s)
        return Nodes(disks(session, there.live), reachable(session, there), drained(session))

    def presumed(self, session: Session) -> Presence:
        """Presence as updates see it: a registry that has just started gives nodes time to find it."""
        return presumed(session, self.started, self.clock(), self.config.node_live_s)

    def collect(self, unused_s: float, *, untagged: bool = False) -> tuple[int, int]:
        """Remove blobs unused for that long, and uploads that broke off longer ago than that or than upload_kept_s; returns the number
        of each."""
        before = self.clock() - unused_s
        with self.store.write(durable=True) as session:
            repositories.forget_unused(session, before, untagged=untagged)
        there = list(self.blobs.everything())
        # The only writer again: a blob that a repository holds by now stays, and no push can use one of the others before it is gone.
        with self.store.write(removes_files=True) as session:
            unused = repositories.not_held(session, there)
            for digest in unused:
                self.blobs.remove(digest)
        return len(unused), self.uploads.expire(max(before, self.clock() - self.config.upload_kept_s))


def services() -> Services:
    """The services of the application that serves this request."""
    return cast(Services, current_app.extensions["registry"])


def authorise() -> None:
    """Before every request: Unauthorized if it needs a token and has none."""
    if "gunicorn.socket" in request.environ:  # a silent peer must not hold a thread
        request.environ["gunicorn.socket"].settimeout(services().config.silence_s)
    if request.blueprint == "console":  # its forms have a check of their own
        return
    reads = request.method in ("GET", "HEAD", "OPTIONS")
    needs = request.endpoint in READS_WITH_TOKEN if reads else request.endpoint not in WRITES_WITHOUT_TOKEN
    if request.routing_exception is None and needs:
        auth.check(request.authorization, services().tokens)


def on_error(e: Exception) -> Response:
    """Turn any exception into its status and JSON."""
    if isinstance(e, HTTPException) and (e.response is not None or e.code in (301, 308)):
        return cast(Response, e.get_response())
    status, code, message, retry = error_of(e)
    oci = request.path.startswith("/v2/")
    told = oci_errors.form(e, status, code, message, retry) if oci else {"error": {"code": code, "message": message, "retry": retry}}
    response = reply(told, status)
    if isinstance(e, HTTPException):
        kept = ("allow", "content-range")
        response.headers.extend((k, v) for k, v in e.get_headers(request.environ) if k.lower() in kept)
    if status == 401:
        for challenge in auth.challenges(request.host_url, oci_base=request.path == "/v2/"):
            response.headers.add("WWW-Authenticate", challenge)
    return response


def error_of(e: Exception) -> tuple[int, str, str, bool]:
    """(status, code, message, whether a retry may help) of an exception; an unexpected one is logged, and answered without its text."""
    if isinstance(e, UdoError):
        status = getattr(e, "status", None) or next((s for cls in type(e).__mro__ if (s := STATUS.get(cls))), 500)
        return status, e.code, str(e), e.retry
    if postgresql.is_away(e) or isinstance(e, PoolTimeout):
        return 503, "unavailable", "the registry's database does not answer, or is too busy; try again in a moment", True
    if _disk_full(e):
        return 507, "unavailable", "the registry's disk is full; remove versions and run: udo registry gc", True
    if isinstance(e, HTTPException):
        status = e.code or 500
        return status, "not_found" if status == 404 else "usage", f"{request.method} {request.path}: {e.description}", False
    current_app.logger.error("%s %s failed", request.method, request.path, exc_info=e)
    return 500, "error", f"internal error of the registry ({type(e).__name__}); its log says where", False


def _disk_full(e: Exception) -> bool:
    """Whether the disk of a file or of the database is full; PostgreSQL's code for that is 53100."""
    if isinstance(e, DBAPIError):
        return "disk is full" in str(e.orig) or getattr(e.orig, "sqlstate", "") == "53100"
    return isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT)


def reply(data: Any, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(json.dumps(data, separators=(",", ":")), status, mimetype="application/json")


def caller() -> Caller:
    """The caller, as far as it is known."""
    given = request.headers.get("X-Udo-User") or (request.authorization and request.authorization.username) or ""
    who = "".join(c for c in given[:100] if c.isprintable()) or "unknown"
    return Caller(who, request.remote_addr or "local", services().clock())


def body(model: type[Model]) -> Model:
    """The request's JSON as `model`; UsageError names each wrong field but never shows its value, which may be secret."""
    try:
        return model.model_validate_json(request.get_data() or b"{}")
    except ValidationError as e:
        problems = (f"{'.'.join(map(str, p['loc'])) or 'body'}: {p['msg']}" for p in e.errors(include_input=False, include_context=False))
        raise UsageError(f"{request.method} {request.path}: {'; '.join(problems)}") from None


def number(name: str, default: float, ceiling: float) -> float:
    """A number of the query string, from 0 to `ceiling`."""
    text = request.args.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise UsageError(f"?{name}=: expected a number, got {text!r:.50}")
    return min(max(value, 0.0), ceiling)


def flag(name: str) -> bool:
    """A boolean of the query string, false if it is not there."""
    text = request.args.get(name, "false").lower()
    if text not in ("true", "false"):
        raise UsageError(f"?{name}=: expected true or false, got {text!r:.50}")
    return text == "true"
