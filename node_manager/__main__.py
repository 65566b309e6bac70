"""`python -m node_manager`: reads its arguments, starts the parts in order, stops them in order.

SIGTERM and SIGINT stop everything: instances, servers, sockets. After kill -9 instances and servers run on for a grace period, and a
manager that starts meanwhile adopts them.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import socket
import sys
from dataclasses import fields
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any

import structlog

from node_manager.drivers.available import DRIVERS
from node_manager.manager import Manager, hold_home
from node_manager.proc import heeding
from node_manager.reconcile.asking import Asking
from node_manager.reconcile.reconcile import Reconciler
from node_manager.rpc import metrics
from node_manager.rpc.lane_door import LaneDoor
from node_manager.rpc.remote import RemoteServer
from node_manager.rpc.service import CLOSE_GRACE_S, NodeService, RpcServer
from node_manager.settings import NodeSettings
from udo_protocol.errors import UdoError

EXIT_FAILED = 1


def parse_args(argv: list[str] | None = None) -> NodeSettings:
    """Return the settings that these arguments ask for."""
    p = argparse.ArgumentParser("python -m node_manager", description="Runs operators beside Spark's executors on one node.")
    more: dict[str, dict[str, Any]] = {
        "node": {"default": socket.gethostname()},
        "token": {"type": Path, "default": None},
        "driver": {"choices": sorted(DRIVERS)},
        "allow_network": {"default": []},
    }
    for f in fields(NodeSettings):
        if f.metadata:
            flag = "--token-file" if f.name == "token" else f"--{f.name.replace('_', '-')}"
            p.add_argument(flag, dest=f.name, **{"default": f.default, **f.metadata, **more.get(f.name, {})})
    given = vars(p.parse_args(argv))
    token = next(iter(given["token"].read_text("utf-8").split()), "") if given["token"] else ""
    return NodeSettings(**given | {"token": token, "allow_network": tuple(given["allow_network"])})


def _registry(settings: NodeSettings) -> Any:
    if not settings.registry:
        return None
    from udo_protocol.registry.api import Registry

    return Registry(settings.registry, token=settings.token or None, user=f"node:{settings.node}", tls=settings.certificates)


def _wait(stopping: Event) -> None:
    """Wait until a signal handler has set `stopping`.

    Event.wait would not do: a signal that comes just before the thread falls asleep would be handled when it wakes, which is never, and a
    handler that runs inside it would wait for a lock that its own thread holds. A signal always writes to the wake-up descriptor, whichever
    thread it reaches and whenever it comes.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        while not stopping.is_set():
            os.read(reading, 64)
    finally:
        signal.set_wakeup_fd(-1)
        os.close(reading)
        os.close(writing)


def run(settings: NodeSettings, stopping: Event) -> None:
    """Run the node manager until `stopping` is set, then stop everything."""
    log = structlog.get_logger()
    held = hold_home(settings)
    registry = _registry(settings)
    manager = Manager(settings, registry)
    manager.lock_home(held)
    servers: list[RpcServer | RemoteServer | LaneDoor] = [LaneDoor(NodeService(manager), settings.socket), RpcServer(manager)]
    if manager.listen and (tls := settings.certificates):
        servers.append(RemoteServer(manager, manager.listen, tls))
    followers: list[Reconciler | Asking] = [Reconciler(manager, registry), Asking(manager, registry)] if registry else []
    try:
        manager.start()
        manager.metrics_address = metrics.serve(manager, settings.metrics_host, settings.metrics_port)
        for server in servers:
            server.start()
        for follower in followers:
            follower.start()
        gc.freeze()  # loaded objects stay: later collections, which hold up every thread, need not scan them
        log.info("node manager serves", node=settings.node, socket=str(settings.socket), metrics=manager.metrics_address)
        _wait(stopping)
    finally:
        log.info("node manager stops")
        for follower in followers:
            follower.stop()
        closed = [server.stop() for server in servers]
        manager.stop()  # ends calls under way
        for event in closed:
            event.wait(CLOSE_GRACE_S + 1)


def main(argv: list[str] | None = None) -> int:
    """Run a node manager; return the exit status."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
    stopping = Event()

    def stop(signum: int, frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with heeding():
            run(parse_args(argv), stopping)
    except (UdoError, OSError) as e:
        print(f"node manager: {e}", file=sys.stderr)
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
