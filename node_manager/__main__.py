"""`python -m node_manager`: reads its arguments, starts the parts in order, stops them in order.

SIGTERM and SIGINT stop everything: instances, servers, sockets. After kill -9 instances and servers run on for a grace period, and a
manager that starts meanwhile adopts them.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import socket
import sys
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any

import structlog

from node_manager.control.asking import Asking
from node_manager.drivers.available import DRIVERS
from node_manager.manager import Manager
from node_manager.proc import heeding
from node_manager.reconcile import Reconciler
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
    p.add_argument("--home", type=Path, required=True, help="directory of this node manager: sockets, instances, images")
    p.add_argument("--node", default=socket.gethostname(), help="name of this node (default: the host's)")
    p.add_argument(
        "--registry", default="", help="URL of the registry, or URL,URL of its processes; without one, only what is deployed here"
    )
    p.add_argument("--token-file", type=Path, help="file that holds the registry's token")
    p.add_argument("--tls", type=Path, help="folder with ca.crt, tls.crt and tls.key: for an https registry, and for --listen")
    p.add_argument(
        "--listen",
        default="",
        metavar="HOST:PORT",
        help="address on which other hosts reach this node by TLS; its queue server uses the next port. Port 0: any two free ports, which "
        "later starts use again (default: other hosts cannot connect)",
    )
    p.add_argument("--driver", default="process", choices=sorted(DRIVERS))
    p.add_argument(
        "--sandbox", default="auto", choices=["auto", "none"], help="of the process driver (default: auto, where the host allows one)"
    )
    p.add_argument("--warm", type=int, default=1, help="warm instances kept ready, and engines if one was needed (default: 1)")
    p.add_argument("--metrics-port", type=int, default=0, help="port of the Prometheus endpoint (default: any)")
    p.add_argument("--cut-state", action="store_true", help="discard state written after unreadable bytes; a copy is kept")
    host = NodeSettings.metrics_host
    p.add_argument("--metrics-host", default=host, help=f"where that listens; with --tls also 0.0.0.0, all of the host (default: {host})")
    p.add_argument("--server", default="", help="path of a valkey-server or redis-server (default: the bundled one)")
    default = NodeSettings(Path(), "")
    grace, idle = default.heartbeat_grace_ms, default.pinned_idle_s
    p.add_argument(
        "--heartbeat-grace-ms",
        type=int,
        default=grace,
        help=f"instances and servers stop after this time without a node manager (default: {grace})",
    )
    p.add_argument(
        "--pinned-idle-s",
        type=float,
        default=idle,
        help=f"a pinned version that is not called is retired after this time (default: {idle:g})",
    )
    unused = default.session_idle_s
    p.add_argument(
        "--session-idle-s",
        type=float,
        default=unused,
        help=f"a keyed session counts as in use for this time after its last event (default: {unused:g})",
    )
    window = default.rollback_window_s
    p.add_argument(
        "--rollback-window-s",
        type=float,
        default=window,
        help=f"how long the state from before a change of its format is kept for a rollback (default: {window:g})",
    )
    p.add_argument(
        "--decide-s",
        type=float,
        default=default.decide_s,
        help=f"seconds between two decisions about the number of slots, and of the rates they go by (default: {default.decide_s:g})",
    )
    p.add_argument(
        "--runtime-image", default="", help="image in which Python operators run, with --driver docker (default: udo-runtime-python:cpXY)"
    )
    p.add_argument(
        "--command-image",
        default="",
        metavar="IMAGE",
        help="image in which commands run that are not statically linked, with --driver docker (default: that of Python operators)",
    )
    p.add_argument(
        "--allow-network",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="operators that request this endpoint may connect to it; repeatable",
    )
    p.add_argument(
        "--policies",
        type=Path,
        metavar="FILE",
        help="TOML file of balancing policies that deployments may name: [balance] and mine = 'my_module:mine', my_module.py beside it",
    )
    a = p.parse_args(argv)
    token = next(iter(a.token_file.read_text("utf-8").split()), "") if a.token_file else ""
    return NodeSettings(
        a.home.absolute(),
        a.node,
        a.registry,
        token,
        a.driver,
        a.warm,
        a.metrics_port,
        a.server,
        a.heartbeat_grace_ms,
        a.pinned_idle_s,
        a.session_idle_s,
        cut_state=a.cut_state,
        metrics_host=a.metrics_host,
        rollback_window_s=a.rollback_window_s,
        runtime_image=a.runtime_image,
        command_image=a.command_image,
        sandbox=a.sandbox,
        allow_network=tuple(a.allow_network),
        tls=a.tls.absolute() if a.tls else None,
        listen=a.listen,
        decide_s=a.decide_s,
        policies=a.policies.absolute() if a.policies else None,
    )


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
            select.select([reading], [], [])
            os.read(reading, 64)
    finally:
        signal.set_wakeup_fd(-1)
        os.close(reading)
        os.close(writing)


def run(settings: NodeSettings, stopping: Event) -> None:
    """Run the node manager until `stopping` is set, then stop everything."""
    log = structlog.get_logger()
    settings.prepare()
    registry = _registry(settings)
    manager = Manager(settings, registry)
    manager.lock_home()
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
