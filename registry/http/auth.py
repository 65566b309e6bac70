"""The write token: made once, kept in a file only its owner can read, compared in constant time, never logged."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from udo_protocol.errors import Unauthorized, UsageError

# The token service's answer to a request without a password.
ANONYMOUS = "anonymous"

if TYPE_CHECKING:
    from werkzeug.datastructures import Authorization


def load_tokens(path: Path) -> tuple[str, ...]:
    """Read the tokens in this file, one a line; create it with one token if there is none."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    else:
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    tokens = tuple(line.strip() for line in path.read_text("utf-8").splitlines() if line.strip())
    if not tokens:
        raise UsageError(f"token file {path} is empty: write a token into it, or remove it and a new one is made")
    return tokens


def check(authorization: Authorization | None, tokens: tuple[str, ...]) -> None:
    """Raise Unauthorized unless a Bearer token, or the password of Basic, is one of `tokens`."""
    if authorization is None:
        raise Unauthorized("this needs the write token: send 'Authorization: Bearer <token>' (it is in the registry's token file)")
    given = authorization.token if authorization.type == "bearer" else authorization.password if authorization.type == "basic" else None
    # A list, not a generator: timing must not reveal which token was close.
    if not any([hmac.compare_digest((given or "").encode(), token.encode()) for token in tokens]):
        raise Unauthorized("the token sent is not a write token of this registry")


def challenges(base: str, *, oci_base: bool) -> list[str]:
    """Challenges for authentication. `docker` asks /v2/ first, and with a Basic challenge there it could not pull without a password, so
    there only the token service is named: with the token as password it returns that token, without one a token that only reads."""
    service = f'Bearer realm="{base.rstrip("/")}/v2/token",service="udo registry"'
    return [service] if oci_base else [service, 'Basic realm="udo registry"']
