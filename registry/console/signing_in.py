"""Signing in to the console by a write token, kept as a cookie; without it, pages show as much as the API shows without a token.

The cookie holds no token, only a mark by which each request checks that the token is still one of the registry's. It is signed with a key
made of the tokens: several registries with the same tokens accept it, and it ends when a token is removed. A form is accepted only from
the console's own pages (SameSite=Strict, the Origin header, and a value that only these pages know).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from datetime import timedelta
from urllib.parse import urlsplit

from flask import Flask, Request, Response, request, session
from flask.sessions import SecureCookieSession, SecureCookieSessionInterface

from registry.domain.audit import Caller
from registry.http.web import services
from udo_protocol.errors import Unauthorized

PATH = "/console"
_SIGNED_IN = timedelta(hours=12)
_NAME_CHARACTERS = 100


class _ConsoleSessions(SecureCookieSessionInterface):
    """Reads and writes the cookie for the console's pages; a request of the API has no session."""

    def open_session(self, app: Flask, request: Request) -> SecureCookieSession | None:
        ours = request.path == PATH or request.path.startswith(f"{PATH}/")
        return super().open_session(app, request) if ours else self.make_null_session(app)


def configure(app: Flask, tokens: Sequence[str], *, https: bool) -> None:
    """Set how the cookie is signed and sent."""
    app.session_interface = _ConsoleSessions()
    app.secret_key = hashlib.sha256("\n".join(["udo console", *sorted(tokens)]).encode()).digest()
    app.config.update(
        SESSION_COOKIE_NAME="udo_console",
        SESSION_COOKIE_PATH=PATH,
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Strict",
        SESSION_COOKIE_SECURE=https,
        PERMANENT_SESSION_LIFETIME=_SIGNED_IN,
    )


def sign_in(token: str, name: str) -> None:
    """Sign the browser in. Unauthorized unless it is a write token."""
    marks = [_mark(known) for known in services().tokens]
    mark = _mark(token.strip())
    if not any([hmac.compare_digest(mark, known) for known in marks]):  # a list: timing must not reveal which one was close
        raise Unauthorized("that is not a write token of this registry; it is in the registry's token file")
    session.clear()
    session.permanent = True
    who = "".join(c for c in name.strip()[:_NAME_CHARACTERS] if c.isprintable()) or "console"
    session.update(mark=mark, who=who, form=secrets.token_urlsafe(16))


def sign_out() -> None:
    """Sign the browser out."""
    session.clear()


def is_signed_in() -> bool:
    """Whether the cookie was made with a token that the registry still has."""
    mark = str(session.get("mark", ""))
    return any([hmac.compare_digest(mark, _mark(known)) for known in services().tokens])


def require_signed_in() -> None:
    """Unauthorized unless signed in."""
    if not is_signed_in():
        raise Unauthorized("sign in first")


def require_own_form() -> None:
    """Before each POST: Unauthorized if it does not come from a page of this console."""
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != request.host:
        raise Unauthorized(f"this form was sent by a page of {origin}")
    if request.endpoint == "console.signed_in":
        return
    require_signed_in()
    if not hmac.compare_digest(request.form.get("form", "").encode(), str(session["form"]).encode()):
        raise Unauthorized("this form is out of date: open the page again")


def caller() -> Caller:
    """The signed-in user, as the audit trail names it."""
    return Caller(str(session["who"]), request.remote_addr or "local", services().clock())


def guard(response: Response) -> Response:
    """After each page: forbid scripts, foreign content, framing and caching."""
    response.headers["Content-Security-Policy"] = (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    )
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "same-origin"
    if request.endpoint != "console.static":
        response.headers["Cache-Control"] = "no-store"
    return response


def _mark(token: str) -> str:
    return hmac.new(token.encode(), b"udo console", hashlib.sha256).hexdigest()
