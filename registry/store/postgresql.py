"""PostgreSQL, which several registry processes may share: one writer at a time over all of them, and each is notified of all commits.

A writer holds an advisory lock of its transaction, which the server releases with the connection: the transaction of a killed process is
rolled back, and the next writer continues from the last commit. So all rules of the domain hold as they do in one process.
"""

from __future__ import annotations

import logging
import secrets
import time
from typing import Any, cast

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.orm import Session

from registry.store.hub import Hub

log = logging.getLogger(__name__)
# "udo" and a number: keys of this database's locks for writers, for migrations, and for the process that leads.
_WRITERS, _MIGRATIONS, _LEAD = 0x75646F01, 0x75646F02, 0x75646F03
_CHANNEL = "udo_registry"
# A request that cannot write for this long fails (HTTP 503): other writers take milliseconds, a large garbage collection below a second.
LOCK_MS = 10_000
# A writer that stands still (SIGSTOP, a frozen host) loses its transaction after this time, so that others wait less than LOCK_MS.
STANDS_STILL_MS = 5_000
# A vanished host is noticed after this many probes, this far apart.
_KEEPALIVES = {"idle": 5, "interval": 2, "count": 3}
# Notifications may get lost with a connection whose loss goes unnoticed: after this time the listener looks by itself.
_LOOK_S = 2.0
_AGAIN_S = 0.5
# SQLSTATEs, or their classes, of a lost server or connection, of a full server, and of a lock or transaction that took too long.
_AWAY = ("08", "57P", "53300", "55P03", "25P03", "25P04")


def is_postgresql(url: str) -> bool:
    """Whether this SQLAlchemy URL names a PostgreSQL database."""
    return url.startswith("postgresql")


def connect_arguments() -> dict[str, Any]:
    """Arguments of the driver: bounds of all waits, enforced by the server."""
    bounds = {"lock_timeout": LOCK_MS, "idle_in_transaction_session_timeout": STANDS_STILL_MS}
    bounds |= {f"tcp_keepalives_{name}": value for name, value in _KEEPALIVES.items()}
    mine = {f"keepalives_{name}": value for name, value in _KEEPALIVES.items()}
    options = " ".join(f"-c {name}={value}" for name, value in bounds.items())
    return {"connect_timeout": 5, "application_name": "udo-registry", "options": options, **mine}


def one_migration_at_a_time(connection: Connection) -> None:
    """Wait for other processes' migrations; the lock is held until the transaction ends."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATIONS})


def take_writers_lock(session: Session) -> None:
    """Take the lock until the transaction ends. OperationalError with SQLSTATE 55P03 after LOCK_MS."""
    session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _WRITERS})


def stand_still_allowed(session: Session) -> None:
    """Lift the idle bound of this transaction: a process that removes files must not lose the lock while it does."""
    session.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))


def is_away(e: BaseException) -> bool:
    """Whether this error says that the database cannot be reached, or was too busy: the same may succeed later."""
    if not isinstance(e, DBAPIError):
        return False
    state = getattr(e.orig, "sqlstate", None)
    if state is None:  # not from the server
        return e.connection_invalidated or (isinstance(e, OperationalError | InterfaceError) and "psycopg" in type(e.orig).__module__)
    return str(state).startswith(_AWAY)


class Lead:
    """Whether this process leads: one of all processes of the database does, as long as its connection lives. For one thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None

    def held(self) -> bool:
        """Take the lead if no process has it; return whether this one leads. False while the database is away."""
        try:
            if self._connection is not None:
                self._connection.exec_driver_sql("SELECT 1")
                return True
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            if connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LEAD}):
                self._connection = connection
                return True
            connection.close()
        except DBAPIError as e:
            if not is_away(e):
                raise
            self.give_up()
        return False

    def give_up(self) -> None:
        """Let another process lead."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()


class OtherProcesses:
    """The other processes of this database: notifies them of this process's commits, and receives their notifications."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._own = secrets.token_hex(8)
        self._ahead_s = 0.0

    def tell(self, session: Session, generation: int | None) -> None:
        """Notify all of them, as soon as this transaction is committed."""
        said = f"{self._own} {'' if generation is None else generation}"
        session.execute(text("SELECT pg_notify(:channel, :said)"), {"channel": _CHANNEL, "said": said})

    def clock(self) -> float:
        """Seconds since the epoch by the server's clock, which is the same for all processes; read every few seconds."""
        return time.time() + self._ahead_s

    def look(self) -> int:
        """Read the server's clock; returns the generation of the nodes' wanted state."""
        with self._engine.connect() as connection:
            before = time.time()
            row = connection.execute(
                text("SELECT extract(epoch FROM clock_timestamp())::float8, (SELECT value FROM settings WHERE key = 'generation')")
            ).one()
            self._ahead_s = float(row[0]) - (before + time.time()) / 2
        return int(row[1] or 0)

    def listen(self, hub: Hub) -> None:
        """Wake waiting requests of this process until the hub closes. Retries while the database is away."""
        import psycopg

        while not hub.stopping.is_set():
            try:
                self._hear(hub)
            except (DBAPIError, psycopg.Error) as e:
                if isinstance(e, DBAPIError) and not is_away(e):
                    raise
                log.warning("the database is away, others' commits will be seen when it is back: %s", type(e).__name__)
                hub.stopping.wait(_AGAIN_S)

    def _hear(self, hub: Hub) -> None:
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"LISTEN {_CHANNEL}")
            driver = cast(Any, connection.connection.driver_connection)
            try:
                hub.publish(self.look())  # for commits made while this process did not listen
                while not hub.stopping.is_set():
                    if (generation := self.look()) > hub.generation:
                        hub.publish(generation)
                    until = time.monotonic() + _LOOK_S
                    while (left := until - time.monotonic()) > 0 and not hub.stopping.is_set():
                        for heard in driver.notifies(timeout=left, stop_after=1):
                            who, _, generation = heard.payload.partition(" ")
                            if who != self._own:
                                hub.publish(int(generation) if generation else None)
            finally:
                connection.invalidate()  # the pool's other connections need no notifications
