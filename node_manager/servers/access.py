"""Users of the two servers: the node manager's own, one per slot for its lanes, one per instance. No connection without a password.

The manager's password, and the secret from which those of lanes are derived, are drawn once per home and kept in a file for this user only.
The password of a slot's lanes changes every hour; an instance's is known to the instance alone, and only its hash is kept here. A server
starts with all its users (an access-control file), so that it never accepts unknown users and never refuses a known one.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from node_manager.files import read_json, write_json
from node_manager.servers.binaries import Role
from udo_protocol.errors import Unavailable
from udo_protocol.queue import access
from udo_protocol.queue.connection import Connection, Login
from udo_protocol.queue.keys import SlotKeys

# Executes one command, with whichever client the caller has.
Call = Callable[..., Any]
# The users of lanes are called `lane:fraud:0`; no instance has such a name.
MANAGER, LANES = "manager", "lane"
_BYTES = 24
# A lane logs in right after it was opened. A password that was handed out is good for the rest of its hour and the next one.
LANE_PASSWORD_S = 3600
# The file in an instance's directory from which it reads its password.
PASSWORD_FILE = ".password"
# The server's own user `default` may do nothing.
_CLOSED = "user default off resetpass resetkeys resetchannels -@all"


def _secrets(home: Path) -> dict[str, str]:
    """The manager's password and the lanes' secret; Unavailable if no node manager ever started with this home."""
    known = read_json(_file(home))
    if not known:
        raise Unavailable(f"{_file(home)} is absent: no node manager has started with home {home}, or this user may not read it")
    return {name: str(known[name]) for name in (MANAGER, LANES)}


def connect(home: Path, role: Role) -> Connection:
    """A connection as the manager to a server of this home, for tools and tests; ServerLost while it is away."""
    return Connection(str(home / "run" / f"{role}.sock"), login=Login(MANAGER, _secrets(home)[MANAGER]))


def _file(home: Path) -> Path:
    return home / "servers" / "access.json"


def _hash(password: str) -> str:
    return "#" + hashlib.sha256(password.encode()).hexdigest()


class Users:
    """See the module. Methods may be called from any thread."""

    def __init__(self, home: Path) -> None:
        self.clock: Callable[[], float] = time.time
        self._directory = _file(home).parent
        if not _file(home).exists():
            write_json(_file(home), {name: secrets.token_urlsafe(_BYTES) for name in (MANAGER, LANES)})
        found = _secrets(home)
        self.manager, self._of_lanes = Login(MANAGER, found[MANAGER]), found[LANES].encode()
        self._rules: dict[Role, dict[str, list[str]]] = {"queue": {}, "state": {}}
        self._lock = Lock()

    def acl_file(self, role: Role) -> Path:
        """Write the file of users that a server of this role starts with; return its path."""
        users = {MANAGER: ["on", _hash(self.manager.password), "~*", "+@all"]}
        with self._lock:
            users |= self._rules[role]
        path = self._directory / f"{role}.acl"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as f:
            f.writelines(f"{line}\n" for line in (_CLOSED, *(f"user {name} {' '.join(rules)}" for name, rules in users.items())))
        return path

    def new(self, role: Role, call: Call, name: str, rules: Sequence[str]) -> str:
        """Admit a new user; return its password."""
        password = secrets.token_urlsafe(_BYTES)
        self._set(role, call, name, ["on", _hash(password), *rules])
        return password

    def hour(self) -> int:
        """The hour whose lane passwords are handed out now."""
        return int(self.clock() // LANE_PASSWORD_S)

    def lanes(self, keys: SlotKeys, hour: int = 0) -> Login:
        """The user of this slot's lanes, with its password of that hour."""
        password = hmac.new(self._of_lanes, f"{keys}{hour}".encode(), hashlib.sha256).hexdigest()
        return Login(f"{LANES}:{keys.deployment}:{keys.number}", password)

    def admit_lanes(self, call: Call, keys: SlotKeys, hour: int) -> None:
        """Admit the user of a slot's lanes on the queue server, with the passwords of this hour and the last one. Connections stay."""
        passwords = [_hash(self.lanes(keys, h).password) for h in (hour, hour - 1)]
        self._set("queue", call, self.lanes(keys).user, ["on", "resetpass", *passwords, *access.lanes(keys)])

    def widen(self, role: Role, call: Call, name: str, rules: Sequence[str]) -> None:
        """Give a user of the queue server these rights on the server of this role, with the password it has."""
        with self._lock:
            password = next(rule for rule in self._rules["queue"][name] if rule.startswith("#"))
        self._set(role, call, name, ["on", password, *rules])

    def _set(self, role: Role, call: Call, name: str, rules: list[str]) -> None:
        with self._lock:
            self._rules[role][name] = rules  # first: a server that is lost in the next step starts again with it
        call("ACL", "SETUSER", name, *rules)

    def forget(self, role: Role, name: str) -> bool:
        """Leave the user out of servers that start from now on; return whether it was known until now."""
        with self._lock:
            return self._rules[role].pop(name, None) is not None

    def adopt(self, role: Role, call: Call) -> None:
        """Learn the instances' users of a server that a former manager started."""
        for line in call("ACL", "LIST"):
            _, name, *rules = bytes(line).decode().split(" ")
            if name not in (MANAGER, "default"):
                with self._lock:
                    self._rules[role][name] = rules

    def others(self, role: Role, known: Iterable[str]) -> list[str]:
        """The instances' users that are not among these."""
        with self._lock:
            return sorted(name for name in self._rules[role].keys() - set(known) if not name.startswith(f"{LANES}:"))


def write_password(path: Path, password: str) -> None:
    """Hand a password over in a file for this user only, which must not exist yet."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as f:
        f.write(password)


def remove_password(path: Path) -> None:
    """Remove the password file: it has been read, or never will be."""
    with contextlib.suppress(OSError):
        path.unlink()
