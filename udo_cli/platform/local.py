"""The platform of one machine in the background: starts a registry and a node manager, and stops them with all processes they started.

Both run in process sessions of their own. They are identified by pid and start time, so that another process with that pid is not touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from node_manager.files import read_json
from node_manager.proc import ProcessId, alive, identify, signal_group, terminate, wait
from node_manager.servers import watchdog
from udo_cli.home import Home
from udo_cli.options import daemons
from udo_cli.options.daemons import START_TIMEOUT_S, UpOptions
from udo_protocol import certificates
from udo_protocol.errors import Conflict, UdoError, Unavailable, Untrusted, UsageError, WaitTimeout
from udo_protocol.files import lock_within
from udo_protocol.listening import require_tls_beyond
from udo_protocol.registry.api import Registry

# The node manager lets its instances finish the present frame first.
STOP_GRACE_S = 20.0
_LOOK_S = 0.05
# The worker of a killed registry goes on answering for up to a second, until it notices.
_ORPHAN_S = 3.0
T = TypeVar("T")


@dataclass(frozen=True)
class StartedServices:
    """The running services. `fresh`: those that this call has started; `remarks`: about the node's data, for the user."""

    registry: str
    node: str
    fresh: tuple[str, ...]
    remarks: tuple[str, ...]


def start(home: Home, options: UpOptions, say: Callable[[str], None]) -> StartedServices:
    """Start the services that do not run and wait until both answer. On an error or Ctrl-C, those that this call started are stopped."""
    if not options.tls:
        require_tls_beyond(options.listen, "the registry")
        if options.node_listen:
            raise UsageError(f"--node-listen {options.node_listen} needs certificates: --tls FOLDER (see: udo certs)")
    home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _alone(home), contextlib.ExitStack() as undo:
        _keep_certificates(home, options.tls)
        fresh = []
        url = _lasting_registry(home)
        if url is None:
            say("starting the registry")
            undo.callback(_stop_one, home.registry)
            (home.registry / "address").unlink(missing_ok=True)
            wish = daemons.RegistryOptions(
                home.registry, options.listen, home.token_file, trusted_keys=options.trusted_keys, tls=options.tls
            )
            child = _spawn(home.registry, ["registry", *daemons.arguments(wish)])
            url = _await(lambda: _answering_registry(home), child, home.registry, "the registry", options.timeout_s)
            fresh.append("registry")
        elif options.tls and not url.startswith("https:"):
            raise Conflict(f"the registry at {url} runs already, without TLS; stop it first: udo down")
        elif options.trusted_keys:
            _require_signing(home, url)
        told = home.node / "registry"
        if "registry" in fresh and _node_answers(home) and not (told.exists() and told.read_text("utf-8") == url):
            say(f"the registry has a new address, {url}: restarting the node manager, queries continue")
            _replace_node(home)
        if not _node_answers(home):
            say("starting the node manager")
            undo.callback(_stop_node, home)
            arguments = ["node_manager", "--home", str(home.node), "--registry", url, "--token-file", str(home.token_file)]
            arguments += ["--decide-s", str(options.decide_s)] if options.decide_s else []
            arguments += daemons.arguments(options, daemons.NodeOptions)
            arguments += ["--tls", str(options.tls), "--listen", _node_listen(options)] if options.tls else []
            child = _spawn(home.node, arguments + (["--node", options.node] if options.node else []))
            told.write_text(url, "utf-8")
            _await(lambda: _node_answers(home) or None, child, home.node, "the node manager", options.timeout_s)
            _await(lambda: _live_nodes(home, url) or None, child, home.node, "the node manager's first heartbeat", options.timeout_s)
            fresh.append("node")
        undo.pop_all()
    return StartedServices(url, str(home.node_socket), tuple(fresh), _remarks(home))


def stop(home: Home, say: Callable[[str], None]) -> list[str]:
    """Stop node manager and registry, and kill processes that do not end in time; return the names of all that it stopped."""
    if not home.path.is_dir():
        return []
    with _alone(home):
        stopped = []
        for what, directory in (("node manager", home.node), ("registry", home.registry)):
            if _recorded(directory):
                say(f"stopping the {what}")
                stopped.append(what)
                _stop_one(directory)
        if left := _sweep(home):
            say(f"killed what was left: {', '.join(left)}")
            stopped += left
        return stopped


# The signals that end this command, except those that were ignored when it was started, as under nohup.
_SIGNALS = tuple(n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP end the command in the block; it ignores further signals while it cleans up, for a bounded time."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        arm()
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def arm() -> None:
    """Install the handlers; also again after a library has installed its own, as PySpark does."""

    def interrupt(*_: object) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in _SIGNALS:
        signal.signal(number, interrupt)


@contextlib.contextmanager
def undivided() -> Iterator[None]:
    """Delay signals to the end of the block, so that nothing is started or made without being recorded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    before = {number: signal.signal(number, lambda n, f: came.append((n, f))) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0][0])


@contextlib.contextmanager
def unhurried() -> Iterator[None]:
    """Ignore signals in the block, which must take bounded time."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _alone(home: Home) -> Iterator[None]:
    """Allow only one `udo up` or `udo down` at a time in a home. Conflict if another one takes too long."""
    with open(home.path / "lock", "a") as file:
        if not lock_within(file.fileno(), START_TIMEOUT_S):
            raise Conflict(f"another udo up or down has held {home.path}/lock for {START_TIMEOUT_S:.0f} s; wait or end it")
        yield


def _spawn(directory: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
        # -P: no folder of the same name in the current folder may be imported instead.
        command = [sys.executable, "-P", "-m", *arguments]
        with undivided():
            child = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            if (process := identify(child.pid)) is not None:
                (directory / "process.json").write_text(json.dumps(asdict(process)), "utf-8")
    return child


def _await(look: Callable[[], T | None], child: subprocess.Popen[bytes], directory: Path, what: str, timeout_s: float) -> T:
    deadline = time.monotonic() + timeout_s
    while True:
        status = child.poll()
        with contextlib.suppress(UdoError):
            if (found := look()) is not None:
                return found
        log = directory / "log"
        if status is not None:
            kind = UsageError if status == 2 else Unavailable
            raise kind(f"{what} ended with status {status} instead of answering; the end of {log}:\n{tail(log)}")
        if time.monotonic() > deadline:
            raise WaitTimeout(f"waited {timeout_s:.0f} s for {what}; the end of {log}:\n{tail(log)}")
        time.sleep(_LOOK_S)


def tail(path: Path, lines: int = 12) -> str:
    """The last lines of a log, for an error."""
    try:
        return "\n".join(path.read_text("utf-8", "replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(no log)"


def _answering_registry(home: Home) -> str | None:
    url = home.registry_url()
    if url is None:
        return None
    try:
        with _registry(home, url) as registry:
            registry.health()
    except Untrusted:  # a registry answers, with an untrusted certificate
        raise
    except UdoError:
        return None
    return url


def _registry(home: Home, url: str) -> Registry:
    return Registry(url, timeout_s=2.0, tls=certificates.found(None, home.path))


def _keep_certificates(home: Home, tls: Path | None) -> None:
    """Let commands and programs on this host find the certificates of this platform. Without `tls` the former ones stay."""
    link, new = home.path / "tls", home.path / f".tls.{os.getpid()}"
    if tls is not None and not (link.exists() and link.samefile(tls)):
        new.symlink_to(tls)
        os.replace(new, link)


def _node_listen(options: UpOptions) -> str:
    """The address at which the node manager listens for other hosts."""
    if options.node_listen:
        return options.node_listen
    host = "127.0.0.1" if options.listen.startswith("unix:") else options.listen.rpartition(":")[0]
    return f"{host}:0"


def _lasting_registry(home: Home) -> str | None:
    """The URL of a registry that answers and will go on answering: its process is alive, or was not started by `udo up`."""
    url = _answering_registry(home)
    deadline = time.monotonic() + _ORPHAN_S
    killed = (home.registry / "process.json").exists() and _recorded(home.registry) is None
    while killed and url is not None and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        url = _answering_registry(home)
    return url


def _require_signing(home: Home, url: str) -> None:
    """Conflict if the running registry accepts unsigned versions."""
    with _registry(home, url) as registry:
        if not registry.health()["requires_signatures"]:
            raise Conflict(f"the registry at {url} runs already and requires no signatures; stop it first: udo down")


def _live_nodes(home: Home, url: str) -> int:
    with _registry(home, url) as registry:
        return int(registry.health()["live_nodes"])


def _node_answers(home: Home) -> bool:
    if not home.node_socket.exists():
        return False
    from udo_protocol.node.api import connect_node

    return connect_node(str(home.node_socket)).healthy()


def _remarks(home: Home) -> tuple[str, ...]:
    from udo_protocol.node.api import connect_node

    return tuple(f"{s.role} server: {s.remark}" for s in connect_node(home.node_socket).status().servers if s.remark)


def _recorded(directory: Path) -> ProcessId | None:
    """The process in this folder's record, if it is alive."""
    try:
        process = ProcessId(**json.loads((directory / "process.json").read_text("utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return process if alive(process) else None


def _stop_one(directory: Path) -> None:
    if (process := _recorded(directory)) is not None:
        terminate(process, STOP_GRACE_S)
        with contextlib.suppress(ChildProcessError, OSError):
            os.waitpid(process.pid, os.WNOHANG)  # it is our child if `up` itself failed
    (directory / "process.json").unlink(missing_ok=True)


def _stop_node(home: Home) -> None:
    _stop_one(home.node)
    _sweep(home)


def _replace_node(home: Home) -> None:
    """End the node manager only: its instances and servers continue, and the next node manager adopts them."""
    from udo_protocol.node.api import connect_node

    if (process := _recorded(home.node)) is not None:
        signal_group(process, signal.SIGKILL)  # on SIGTERM it would stop its instances and servers
        wait(process, STOP_GRACE_S)
    connect_node(home.node_socket).close()


def _sweep(home: Home) -> list[str]:
    """Kill servers and instances that a killed node manager has left running, according to its records; return their names."""
    left = watchdog.remove_containers(home.node.absolute())
    for path in sorted(home.node.glob("handles/*.json")) + sorted(home.node.glob("servers/*.json")):
        record = read_json(path)
        for process in _processes(record):
            if alive(process):
                terminate(process, 0)
                left.append(f"{path.stem} ({process.pid})")
    return left


def _processes(record: Any) -> Iterator[ProcessId]:
    """Every {pid, started} in a record, at any depth."""
    if isinstance(record, dict):
        if record.keys() >= {"pid", "started"}:
            yield ProcessId(int(record["pid"]), int(record["started"]))
        for value in record.values():
            yield from _processes(value)
