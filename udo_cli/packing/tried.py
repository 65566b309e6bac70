"""Tries a packed operator on an ordinary instance of a node: a node manager within this command, without a registry.

The image is unpacked from its layers, the operator has the sandbox, limits and surroundings of the process driver on this machine, events
travel through its queues, and errors are those of a query. Nothing runs and no file is left afterwards. For `udo test`, `udo dev` and
`udo push`; whole images: contained.py.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import structlog

from node_manager.drivers import logfile
from node_manager.images.images import Images
from node_manager.instances.commands import OWN
from node_manager.manager import Manager
from node_manager.proc import heeding
from node_manager.rpc.service import CLOSE_GRACE_S, RpcServer
from node_manager.settings import NodeSettings
from udo_cli.options.given import OperatorConfig
from udo_cli.packing.build import Packed
from udo_cli.platform import local, throwaway
from udo_cli.text import output
from udo_protocol import supervised
from udo_protocol.errors import OperatorError, SchemaError, UsageError
from udo_protocol.formats.manifest import Manifest
from udo_protocol.registry.wanted import WantedDeployment

if TYPE_CHECKING:
    import pyarrow as pa

SESSION = "udo test"
PREFIX = "udo-trial-"
# Time for the process to start, before the operator's own open_timeout_s begins.
_START_TIMEOUT_S = 60.0
# Time for an instance to finish its present frame: it has none, unless the operator hangs.
_STOP_GRACE_S = 1.0
# How often the operator's output is shown.
_SHOWN_S = 0.1
# The path of an operator's file in an instance's directory, up to the file's own path.
_COPY = re.compile(rf"/[^\s\"']*/{PREFIX}[^\s/]+/instances/[0-9a-f]+/(?:{OWN}/)?code/")


@dataclass(frozen=True)
class Trial:
    """The result of a run on sample events: the answers, and the time from the first event to the last answer."""

    answers: pa.Table
    took_ms: float


def answer(packed: Packed, batches: Sequence[pa.RecordBatch], config: OperatorConfig) -> Trial:
    """Let an instance of the operator answer `batches` (of its input schema). Its output goes to stderr as it comes.

    OperatorError or SchemaError, with traceback and event, as in a query.
    """
    manifest, image = packed.manifest, packed.image
    with local.interruptible(), _node(packed) as manager:
        _place(manager, packed)
        _tell_isolation(manager)
        wait_s = _START_TIMEOUT_S + manifest.limits.open_timeout_s
        try:
            manager.deploy(WantedDeployment(manifest.name, manifest.name, manifest.version, image.digest, config=_data(config)), wait_s)
            return ask(str(manager.settings.socket), manifest, batches)
        except (OperatorError, SchemaError) as e:
            raise type(e)(_at_its_source(str(e), packed)) from None


def _data(config: OperatorConfig) -> dict[str, Any]:
    """The configuration in the form that a node manager takes."""
    files = {inside: base64.b64encode(content).decode() for inside, content in config.files.items()}
    return {"env": dict(config.env), "secrets": dict(config.secrets), "files": files}


def ask(node: str, manifest: Manifest, batches: Sequence[pa.RecordBatch]) -> Trial:
    """The answers of the deployment that has the operator's name, at this node.

    A keyed operator gets all events as one micro-batch of one session, and a second one without events, in which due timers fire.
    """
    import pyarrow as pa

    from udo_interface.lane.lane import exchange
    from udo_interface.lane.opening import KeyedCall, Request, conversations
    from udo_interface.lane.split import SplitExchange
    from udo_protocol.formats.schema import GROUP_COLUMN

    def requests() -> Iterator[tuple[Request, Sequence[pa.RecordBatch]]]:
        if not manifest.key:
            yield Request(manifest.name), batches
            return
        call = KeyedCall(SESSION, SESSION, groups=(0,))
        grouped = [b.append_column(group, pa.array([0] * b.num_rows, group.type)) for b in batches]
        for epoch, events in enumerate((grouped, [])):
            yield Request(manifest.name, SESSION, attempt=1, epoch=epoch, keyed=call), events

    group = pa.field(GROUP_COLUMN, pa.int32())
    sent, expected = manifest.input_schema, manifest.output_schema
    sent = sent.append(group) if manifest.key else sent
    answers: list[pa.RecordBatch] = []
    started = time.perf_counter()
    for request, events in requests():
        with conversations(node, request, sent, expected) as (lanes, opened):
            items, window = ((b, None) for b in events), opened.place.window_frames
            if manifest.key:
                found = SplitExchange(lanes, opened.group_slots or (0,), window).run(items)
            else:
                found = exchange(*lanes[0], items, window)
            answers += [a for _, a in found]
    return Trial(pa.Table.from_batches(answers, expected), (time.perf_counter() - started) * 1000)


@contextlib.contextmanager
def _node(packed: Packed) -> Iterator[Manager]:
    """A node manager that lets its operators reach the endpoints that the packed operator's manifest names."""
    with _quiet(), heeding(), throwaway.workspace(PREFIX) as home:
        settings = NodeSettings(home, "trial", warm=0, stop_grace_s=_STOP_GRACE_S, allow_network=tuple(packed.manifest.network))
        try:
            settings.prepare()
        except UsageError as e:  # its sockets' paths would be too long
            raise UsageError(f"{e}; TMPDIR names the folder in which it is made") from None
        manager = Manager(settings)
        manager.lock_home()
        server = RpcServer(manager)
        with _shown(manager, packed):
            try:
                manager.start()
                server.start()
                yield manager
            finally:
                with local.unhurried():
                    closed = server.stop()
                    manager.stop()
                    closed.wait(CLOSE_GRACE_S + 1)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the node manager's log, which is for those who run one: problems of the operator are raised as errors."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


@contextlib.contextmanager
def _shown(manager: Manager, packed: Packed) -> Iterator[None]:
    """Show the output of instances on stderr, up to their end."""
    readers: dict[Path, logfile.LogReader] = {}
    ended = threading.Event()

    def say(lines: Iterable[str]) -> None:
        for line in lines:
            click.echo(_at_its_source(logfile.split_stamp(line)[1], packed), err=True)

    def show() -> None:
        last = False
        while not last:
            last = ended.wait(_SHOWN_S)
            for path in manager.settings.instances.glob("*/log"):
                if path not in readers:
                    readers[path] = logfile.LogReader(path)
            for reader in readers.values():
                say(reader.lines())

    thread = supervised.keep("trial", show, ended)
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for reader in readers.values():
            say(reader.end())
            reader.close()
        seen = {path.parent.name for path in readers}
        for path in sorted(manager.settings.logs.glob("*/*.log")):  # instances too short-lived to be seen above
            if path.stem.split("-")[1] not in seen:
                say(logfile.tail(path, 0))


def _at_its_source(text: str, packed: Packed) -> str:
    """Replace paths of the copies on the node by those of the source files."""
    return _COPY.sub(lambda _: f"{packed.directory.absolute()}/", text)


def _tell_isolation(manager: Manager) -> None:
    found = manager.driver.capabilities()
    if not found.isolates_reads:
        output.say(f"tested without isolation ({found.remark}); a node that isolates gives it no network and no files but its own")


def _place(manager: Manager, packed: Packed) -> None:
    """Put the image on the node, as if it had been pulled. Dependencies are unpacked once for many trials."""
    manifest, image = packed.manifest, packed.image
    here = Images(manager.settings.images, _Code(packed)).get(manifest.name, manifest.version, image.digest)
    if packed.dependencies is not None:
        here.dependencies.rmdir()
        here.dependencies.symlink_to(packed.dependencies.absolute())


class _Code:
    """The code layer of an image, in the role of the registry that a node manager pulls from."""

    def __init__(self, packed: Packed) -> None:
        self._manifest, self._digest = packed.manifest, packed.image.digest
        (self._layer,) = (layer for layer in packed.image.layers if layer.kind == "code")

    def version(self, name: str, ref: str) -> Mapping[str, Any]:
        layers = [{"digest": self._layer.digest, "size": self._layer.size_bytes, "kind": "code"}]
        return {"name": name, "version": ref, "digest": self._digest, "manifest": self._manifest.model_dump(), "layers": layers}

    def fetch_blob(self, name: str, digest: str, path: Path) -> None:
        shutil.copyfile(self._layer.path, path)
