"""The database: engine, migrations, and the rule that one writer at a time commits and then wakes the waiting requests.

SQLite runs with a write-ahead log and `synchronous=NORMAL`: a killed registry loses nothing, a power cut may lose the
last commits but never the file. Commits about content are `durable`, on the disk before a request is answered or a file is
removed. One process serves a SQLite database, so the writer's lock is an ordinary lock; with PostgreSQL it is the database's as well
(postgresql.py), and any number of processes may serve it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config as AlembicConfig
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import Session, sessionmaker

from registry.store import postgresql
from registry.store.hub import Hub
from registry.store.models import Setting
from udo_protocol import supervised
from udo_protocol.clock import SteadyTime
from udo_protocol.errors import UsageError


def open_engine(url: str, *, durable: bool = False) -> Engine:
    """The engine of this database URL; with `durable` a commit is on the disk when it returns."""
    sqlite = url.startswith("sqlite")
    # Error texts contain no values, since these may be secrets.
    try:
        arguments = postgresql.connect_arguments() if postgresql.is_postgresql(url) else {}
        engine = create_engine(url, pool_size=16, max_overflow=64, pool_pre_ping=not sqlite, hide_parameters=True, connect_args=arguments)
    except (ArgumentError, ModuleNotFoundError) as e:
        form = "sqlite:////path/registry.db or postgresql+psycopg://host/name with its driver installed"
        raise UsageError(f"the database URL does not work ({e}); expected one such as {form}") from e
    if sqlite:

        @event.listens_for(engine, "connect")
        def _prepare(connection: Any, _record: Any) -> None:
            for pragma in ("journal_mode=WAL", f"synchronous={'FULL' if durable else 'NORMAL'}", "busy_timeout=10000", "foreign_keys=ON"):
                connection.execute(f"PRAGMA {pragma}")

    return engine


def migrate(engine: Engine) -> None:
    """Migrate the database to the newest form."""
    config = AlembicConfig()
    config.set_main_option("script_location", str(Path(__file__).parents[1] / "migrations"))
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            postgresql.one_migration_at_a_time(connection)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


class Store:
    """Short sessions: many readers, one writer at a time."""

    def __init__(self, url: str, hub: Hub) -> None:
        self._engines = engine, durable = open_engine(url), open_engine(url, durable=True)
        migrate(engine)
        self._sessions = sessionmaker(engine, expire_on_commit=False)
        self._durable = sessionmaker(durable, expire_on_commit=False)
        self._writing = threading.Lock()
        self._hub = hub
        self._neighbours = postgresql.OtherProcesses(engine) if postgresql.is_postgresql(url) else None
        self._lead = postgresql.Lead(engine) if postgresql.is_postgresql(url) else None
        # The clock of leases and of recorded times: it does not jump.
        self.clock: Callable[[], float] = SteadyTime()
        with self.read() as session:
            row = session.get(Setting, "generation")
            hub.publish(row.value if row else 0)
        if self._neighbours is not None:
            self._neighbours.look()
            self.clock = SteadyTime(self._neighbours.clock)
            supervised.keep("database-notifications", partial(self._neighbours.listen, hub), hub.stopping)

    @property
    def shared(self) -> bool:
        """Whether other processes may serve the database as well."""
        return self._lead is not None

    def leads(self) -> bool:
        """Whether this process does the work that only one may do. For one thread."""
        return self._lead is None or self._lead.held()

    @property
    def generation(self) -> int:
        """The last known generation of the wanted state. What is read after asking for it is of this generation, or newer."""
        return self._hub.generation

    def close(self) -> None:
        """Close all connections."""
        if self._lead is not None:
            self._lead.give_up()
        for engine in self._engines:
            engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that only reads."""
        with self._sessions() as session:
            yield session

    @contextmanager
    def write(self, *, durable: bool = False, removes_files: bool = False) -> Iterator[Session]:
        """The one session that writes: committed at the end, rolled back on an error; waiting requests are woken afterwards.

        With `removes_files` a process that stands still keeps all others from writing, since it may remove a file when it continues.
        """
        with self._writing:
            with (self._durable if durable else self._sessions).begin() as session:
                if self._neighbours is not None:
                    postgresql.take_writers_lock(session)
                    if removes_files:
                        postgresql.stand_still_allowed(session)
                yield session
                if self._neighbours is not None:
                    session.flush()
                    self._neighbours.tell(session, session.info.get("generation"))
            self._hub.publish(session.info.get("generation"))


def bump(session: Session) -> int:
    """Advance the generation of the nodes' wanted state, which wakes their long polls after the commit; returns it."""
    row = session.get(Setting, "generation") or Setting(key="generation", value=0)
    row.value += 1
    session.add(row)
    session.info["generation"] = row.value
    return row.value
