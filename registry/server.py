"""gunicorn around the application: one worker process with many threads, so that a condition can wake every long poll.

The master only watches the worker and never imports the application, which keeps it small.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from gunicorn.app.base import BaseApplication
from gunicorn.workers.gthread import ThreadWorker

from registry.config import RegistrySettings
from udo_protocol import supervised
from udo_protocol.certificates import Tls
from udo_protocol.files import replace_file
from udo_protocol.listening import reached_at
from udo_protocol.serving_tls import ServerTls

if TYPE_CHECKING:
    from flask import Flask


class RegistryWorker(ThreadWorker):  # type: ignore[misc]
    """A thread worker that drops long polls, streams and idle connections at once when it is told to stop."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._let_go()

    def is_parent_alive(self) -> bool:
        """Whether the master lives; if it was killed, a restarted registry waits for this worker to end."""
        if super().is_parent_alive():
            return True
        self.alive = False
        self._let_go()
        return False

    def _let_go(self) -> None:
        if application := self.app.callable:
            # A thread of its own: a signal handler must not wait for the hub's lock.
            supervised.once("stop", application.extensions["registry"].hub.close)

    def murder_keepalived(self, force: bool = False) -> None:
        super().murder_keepalived(force or not self.alive)


class _Application(BaseApplication):  # type: ignore[misc]
    def __init__(self, config: RegistrySettings) -> None:
        self._config = config
        super().__init__()

    def load_config(self) -> None:
        settings: dict[str, Any] = {
            "bind": self._config.listen,
            "worker_class": RegistryWorker,
            "workers": 1,
            "threads": self._config.threads,
            "worker_connections": 4 * self._config.threads,
            # Clients keep their connection between two steps of an update; a new one costs a round trip.
            "keepalive": 75,
            # The master replaces a worker that has shown no sign of life for this long: longer than any hang that a worker survives.
            "timeout": 120,
            # An upload under way may finish within this; all else is dropped at once.
            "graceful_timeout": 5,
            "control_socket_disable": True,
            "proc_name": "udo-registry",
            "post_worker_init": self._ready,
            "worker_exit": self._leave,
            "on_exit": self._gone,
        }
        if self._config.tls is not None:
            tls = Tls.folder(self._config.tls)
            serving = ServerTls(tls, self._config.handshake_s)
            settings |= {"certfile": str(tls.certificate), "keyfile": str(tls.key)}
            settings["ssl_context"] = lambda _config, _default: serving.context()  # called for each connection
        for name, value in settings.items():
            if name in self.cfg.settings:
                self.cfg.set(name, value)

    def load(self) -> Flask:
        gc.disable()
        from registry.app import create_app

        application = create_app(self._config)
        gc.freeze()  # else a full collection, which has to scan all that is loaded, would hold up every request for 0.1 s
        gc.enable()
        return application

    def _ready(self, worker: RegistryWorker) -> None:
        path = self._config.data / "address"
        address = _address(worker.sockets[0].getsockname())
        if self._config.tls is not None and not address.startswith("unix:"):
            address = f"https://{reached_at(self._config.listen)}"  # by a name that its certificate has, too
        replace_file(path, f"{address}\n".encode(), mode=0o644)

    def _leave(self, _server: object, worker: RegistryWorker) -> None:
        if application := worker.app.callable:
            application.extensions["registry"].store.close()
            # Taking down an interpreter full of Arrow and SQLAlchemy takes half a second and frees nothing that matters.
            logging.shutdown()
            os._exit(0)

    def _gone(self, _server: object) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._config.data / "address").unlink()


def _address(name: Any) -> str:
    """A socket's name as a URL that udo_protocol.registry.api takes."""
    if isinstance(name, str | bytes):
        return f"unix:{Path(os.fsdecode(name)).absolute()}"
    host, port = name[0], name[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(config: RegistrySettings) -> int:
    """Serve until SIGTERM, SIGINT or SIGQUIT; returns the exit code."""
    try:
        _Application(config).run()
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 1
    return 0
