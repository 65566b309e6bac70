"""A driver without processes, for tests: an instance is a thread that plays one of a few programs.

It passes the same contract suite as the real drivers. `argv` = ("fake", program, argument): `wait` until stopped, `exit` with a status,
`print` lines then wait, `grow` to that many MiB then wait, `deaf` to a stop.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from threading import Event

from node_manager.drivers.base import OWN_PYTHON_TAG, Allowance, Capabilities, Exit, Handle, Inside, Inspection, OnExit, Spec
from udo_protocol import supervised
from udo_protocol.errors import OperatorError

PROGRAMS = ("wait", "exit", "print", "grow", "deaf", "leave")


class _Thread:
    def __init__(self, spec: Spec, on_exit: OnExit) -> None:
        self.program, self.argument = spec.argv[1], spec.argv[2] if len(spec.argv) > 2 else ""
        self.directory, self.allowance, self.on_exit = spec.directory, spec.allowance, on_exit
        self.rss_bytes, self.reason = 1 << 20, ""
        self.exit: Exit | None = None
        self.changed, self.ended = Event(), Event()
        self.signal = 0

    def play(self) -> None:
        code = 0
        if self.program in ("exit", "leave"):
            code = int(self.argument or 3)
        else:
            if self.program == "print":
                (self.directory / "log").write_text(self.argument)
            if self.program == "grow":
                self.rss_bytes = int(self.argument) << 20
            code = self._obey()
        self.exit = Exit(code, self.reason)
        self.ended.set()
        self.on_exit(self.exit)

    def _obey(self) -> int:
        while True:
            limit = self.allowance.memory_bytes
            if limit and self.rss_bytes > limit:
                self.reason = f"killed: memory limit of {limit >> 20} MiB exceeded, {self.rss_bytes >> 20} MiB resident"
                return -9
            self.changed.wait()
            self.changed.clear()
            if self.signal == 9 or (self.signal == 15 and self.program != "deaf"):
                return -self.signal


class FakeDriver:
    """See the module. `world` outlives a driver as processes outlive a manager: give it to the next one to recover."""

    name = "fake"
    python_tag = OWN_PYTHON_TAG

    def __init__(self, world: dict[str, _Thread] | None = None) -> None:
        self.world = {} if world is None else world

    def capabilities(self) -> Capabilities:
        return Capabilities(memory_limit=True)

    def inside(self, directory: Path, sockets: Path, *, engine: bool = False) -> Inside:
        return Inside(str(directory), str(sockets), str(directory), images=True)

    def operator_box(
        self, directory: Path, cwd: Path, allowance: Allowance, *, python: bool = False, bare: bool = False, nice: int = 0
    ) -> list[str]:
        return []

    def sweep(self, known: Collection[str]) -> None:
        for task in [t for name, t in self.world.items() if name not in known]:
            task.signal = 9
            task.changed.set()

    def start(self, spec: Spec, on_exit: OnExit) -> Handle:
        if spec.argv[0] != "fake" or spec.argv[1] not in PROGRAMS:
            raise OperatorError(f"instance {spec.instance} cannot be started: {spec.argv[0]}: no such program")
        (spec.directory / "log").touch()
        task = self.world[spec.instance] = _Thread(spec, on_exit)
        supervised.once("watch", task.play, spec.instance)
        return Handle(self.name, spec.instance, str(spec.directory), {})

    def recover(self, handle: Handle, allowance: Allowance, on_exit: OnExit) -> bool:
        task = self.world.get(handle.instance)
        if task is None or task.ended.is_set():
            return False
        task.on_exit = on_exit
        self.limit(handle, allowance)
        return True

    def forget(self, image: str) -> None:
        """Does nothing: this driver keeps nothing of an image."""

    def close(self) -> None:
        """Does nothing: this driver holds no resources."""

    def limit(self, handle: Handle, allowance: Allowance) -> None:
        task = self.world[handle.instance]
        task.allowance = allowance
        task.changed.set()

    def _signal(self, handle: Handle, signum: int) -> _Thread:
        task = self.world[handle.instance]
        task.signal = signum
        task.changed.set()
        return task

    def stop(self, handle: Handle, grace_s: float) -> None:
        if not self._signal(handle, 15).ended.wait(grace_s):
            self._signal(handle, 9).ended.wait(5)

    def kill(self, handle: Handle, reason: str) -> None:
        self.world[handle.instance].reason = reason
        self._signal(handle, 9)

    def inspect(self, handle: Handle) -> Inspection:
        task = self.world.get(handle.instance)
        if task is None or task.ended.is_set():
            return Inspection(False, exit=task.exit if task else None)
        return Inspection(True, 1, task.rss_bytes, 0.0)
