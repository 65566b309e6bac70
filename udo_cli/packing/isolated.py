"""Runs an operator in an interpreter of its own, for tasks that no instance of a node has: import only, migrate states, replay a recording.

The operator has the sandbox and the limits that the process driver would give it on this machine, except in a replay of a Python operator,
which has the terminal. The operator's output goes to stderr; a hang, an exit or a crash becomes an OperatorError.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node_manager import proc
from node_manager.drivers import runtime_base, users
from node_manager.drivers.base import Allowance, Inside
from node_manager.drivers.process import BUSY_SAMPLE_S, excess
from node_manager.drivers.sandbox import Bubblewrap, Sandbox, confining
from node_manager.instances import commands
from udo_cli.options.given import OperatorConfig
from udo_cli.packing import boxed
from udo_cli.packing.build import UnpackedOperator
from udo_cli.platform import throwaway
from udo_protocol import signals
from udo_protocol.errors import OperatorError, SchemaError
from udo_protocol.formats.manifest import Manifest

CHILD = Path(__file__).with_name("isolated_child.py")
_SIGNALLED = 128


def check_import(operator: UnpackedOperator) -> None:
    """Import the entry point as an instance would. OperatorError with the operator's own traceback."""
    _start(operator, {})


def migrate(operator: UnpackedOperator, version: int, state: Path) -> None:
    """Run the operator's migrate() on states of state version `version`. OperatorError with traceback and key.

    `state`: a file with a MessagePack stream of key, state, key, state ..., each packed.
    """
    _start(operator, {"state": str(state), "state_version": version})


def _start(operator: UnpackedOperator, more: Mapping[str, Any]) -> None:
    manifest = operator.manifest
    with prepared(operator, OperatorConfig()) as trial:
        trial.request.update(more)
        box = boxed.find(trial.work, [*trial.request["path"], *more.values()])
        if manifest.own_process:  # the sandbox is for the operator's process, not for the engine that starts it
            trial.request.update(own_process(trial, operator, box))
            box = None
        run_child(trial, manifest, manifest.limits.open_timeout_s, box)
        outcome(trial.work, manifest)


def own_process(trial: Prepared, operator: UnpackedOperator, box: Sandbox | None) -> dict[str, Any]:
    """The fields of the request for an operator in a process of its own: its engine has none of the operator's code on the module path."""
    manifest, code = operator.manifest, operator.code
    python, cwd = None, code
    path, base = trial.request["path"], trial.request["base"][-1]
    if not manifest.command:
        python, cwd = commands.Python(sys.executable, [*path, base]), trial.private
    before = [] if box is None else confining(box, trial.private, cwd, map(Path, path), python=python is not None)
    command = commands.launch(manifest, str(code), str(trial.private), before, _inside(trial, box), python)
    return {"command": command, "path": [], "base": [base]}


def _inside(trial: Prepared, box: Sandbox | None) -> Inside:
    """The surroundings that the operator finds."""
    if box is None:
        return Inside(str(trial.private), "", str(trial.private), user=users.of_this_process())
    return Inside(str(trial.private), "", box.scratch(trial.private)[0], user=box.user)


@dataclass(frozen=True)
class Prepared:
    """The child's directory (`work`), the operator's working directory (`private`), and the request to the child."""

    work: Path
    private: Path
    request: dict[str, Any]


@contextmanager
def prepared(operator: UnpackedOperator, config: OperatorConfig) -> Iterator[Prepared]:
    """Prepare the folders and the request with which the child loads the operator as an instance would; removed after the block."""
    with throwaway.workspace("udo-trial-") as work:
        private = work / "private"
        private.mkdir()
        for inside, data in config.files.items():
            (private / inside).parent.mkdir(parents=True, exist_ok=True)
            (private / inside).write_bytes(data)
        manifest, dependencies = operator.manifest, operator.dependencies
        base = runtime_base.build(work / "runtime")
        path = [] if manifest.command else [str(operator.code)] + ([str(dependencies)] if dependencies else [])
        # As on a node, dependencies come first if they contain another version of a module of the runtime.
        front = path if dependencies and runtime_base.contradicts(dependencies) else []
        request = {
            "operator": manifest.name,
            "version": manifest.version,
            "entry": manifest.entry,
            "input": manifest.input,
            "output": manifest.output,
            "keyed": manifest.keyed,
            "state_types": manifest.state,
            "path": path,
            "base": [*front, str(base)],
            "env": {**config.env, **config.secrets},
        }
        yield Prepared(work, private, request)


def _write_private(path: Path, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as f:
        f.write(text)


def run_child(trial: Prepared, manifest: Manifest, bound_s: float | None, box: Sandbox | None = None, *, foreground: bool = False) -> None:
    """Run the child to its end. OperatorError if it writes no outcome, takes longer than `bound_s` (None: no limit) or exceeds its limits.

    `foreground`: the child has this terminal, for a debugger, and handles Ctrl-C. A replay inherits stdin in any case.
    """
    with open(trial.work / "outcome.json", "wb") as outcome, open(trial.work / "answers.arrow", "wb") as answers:
        # The sandbox lets the child write to no directory of ours, so it inherits open files.
        results = {"outcome_fd": outcome.fileno(), "answers_fd": answers.fileno()}
        request = {**trial.request, **results, "open_files": manifest.limits.open_files}
        _write_private(trial.work / "request.json", json.dumps(request))
        how = _run(trial, manifest, bound_s, box, tuple(results.values()), foreground=foreground)
    if not (trial.work / "outcome.json").stat().st_size:
        raise OperatorError(f"{manifest.reference} {how} instead of answering")


def _run(
    trial: Prepared, manifest: Manifest, bound_s: float | None, box: Sandbox | None, inherited: tuple[int, ...], *, foreground: bool
) -> str:
    """Run the child; returns how it ended, in words."""
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "TERM")} | commands.surroundings(_inside(trial, box))
    if not trial.request.get("command"):  # else the variables are for the operator's own process
        kept |= trial.request["env"]
    command = [sys.executable, *commands.ALONE, "-B", str(CHILD), str(trial.work)]
    gate = boxed.Gate() if manifest.network and isinstance(box, Bubblewrap) else None
    if box is not None:
        command = [*(gate.command(box, trial.private) if gate else box.command(trial.private)), *command]  # type: ignore[arg-type]
        kept["TMPDIR"] = box.scratch(trial.private)[0]
    # A handler instead of SIG_IGN, which the child would inherit.
    before = signal.signal(signal.SIGINT, lambda *_: None) if foreground else None
    try:
        with proc.heeding():
            child = subprocess.Popen(
                command,
                cwd=trial.private,
                env=kept,
                stdin=None if "replay" in trial.request else subprocess.DEVNULL,
                stdout=_stderr(),
                start_new_session=not foreground,
                pass_fds=(*inherited, *(gate.inherited if gate else ())),
            )
        try:
            if gate is not None:
                gate.open(trial.private, manifest.network)
            status = child.wait() if bound_s is None else _within(child, manifest, bound_s)
        finally:
            for pid in list(proc.tree(child.pid)):  # also the child's own children, and the sandbox's processes
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            child.wait()
    finally:
        if gate is not None:
            gate.close()
        if before is not None:
            signal.signal(signal.SIGINT, before)
    if box is not None and status > _SIGNALLED:  # a sandbox reports a signal in this way
        status = _SIGNALLED - status
    return "ended its process with " + (f"signal {signals.named(-status)}" if status < 0 else f"exit status {status}")


def _within(child: subprocess.Popen[bytes], manifest: Manifest, bound_s: float) -> int:
    """The child's exit status. OperatorError, in the words of the process driver, if it exceeds the limits of its manifest."""
    allowance, deadline = Allowance.of(manifest), time.monotonic() + bound_s
    while time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            return child.wait(BUSY_SAMPLE_S)
        rss_bytes, _, processes = proc.usage(child.pid)
        if excess(allowance, rss_bytes, processes) and (why := excess(allowance, proc.resident(child.pid), processes)):
            raise OperatorError(f"{manifest.reference} was {why}")
    raise OperatorError(
        f"{manifest.reference} did not finish within {bound_s:.0f} s (open_timeout_s + answer_timeout_s per batch in operator.toml)"
    )


def _stderr() -> int:
    try:
        return sys.stderr.fileno()
    except (OSError, AttributeError, ValueError):  # sys.stderr is not a file, as in test runners
        return 2


def outcome(work: Path, manifest: Manifest) -> dict[str, Any]:
    """The outcome that the child has written; a failure is raised as OperatorError or SchemaError, with traceback and event."""
    said: dict[str, Any] = json.loads((work / "outcome.json").read_text("utf-8"))
    if said.get("interrupted"):
        raise KeyboardInterrupt
    if not said["ok"]:
        lines = [f"{manifest.reference}: {said['message']}"]
        if said["event"]:
            lines.append(f"the event: {said['event']}")
        if said["traceback"]:
            lines.append(said["traceback"])
        raise (SchemaError if said["code"] == SchemaError.code else OperatorError)("\n".join(lines))
    return said
