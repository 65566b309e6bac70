"""The journals of decisions on this node's disk: one folder per deployment, with segments that are only appended to.

A segment is a journal of its own (elasticity/scaling/journal.py): it begins with the policy and its settings, and replays to the same
decisions. A manager that starts continues the last segment, and restores the policy's memory by replaying it. Another policy, setting or
mode begins a new segment, and so does a full one. A power loss may cost the last lines; a truncated line is removed before the next one is
written.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

import structlog

from elasticity.scaling import journal
from elasticity.scaling.journal import Controller, Execution, Header, JournalEntry
from elasticity.scaling.model import Sample
from udo_protocol.errors import UsageError

# A line takes about 0.5 KB plus 0.2 KB per slot: a segment has some hours to a day of decisions, and is read again in well below a second.
SEGMENT_BYTES = 4 << 20
# Segments kept per deployment: 32 MiB.
KEPT_SEGMENTS = 8
# Folders kept, including those of undeployed deployments.
KEPT_JOURNALS = 256
_log = structlog.get_logger()


class DeploymentJournal:
    """One deployment's journal, and the policy whose decisions it holds. Methods may be called from any thread."""

    def __init__(self, folder: Path, header: Header, segment_bytes: int = SEGMENT_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.header, self._folder, self._segment_bytes = header, folder, segment_bytes
        self._lock = Lock()
        self.last_at_s = 0.0
        self._unwritten = False
        self._controller = self._go_on() or self._begin()

    @property
    def segment(self) -> str:
        """Name of the file that is appended to."""
        return self._path.name

    def decide(self, sample: Sample) -> JournalEntry:
        """Make the next decision and write it down. OSError if it cannot be written: then there is no decision."""
        with self._lock:
            if self._unwritten:  # the policy remembers a decision that the journal lacks
                self._controller = self._go_on() or self._begin()
                self._unwritten = False
            if self._path.stat().st_size > self._segment_bytes:
                self._controller = self._begin()
            entry = self._controller.decide(sample)
            try:
                self._append(journal.line(entry))
            except OSError:
                self._unwritten = True
                raise
            self.last_at_s = sample.at_s
            return entry

    def executed(self, segment: str, execution: Execution) -> None:
        """Write down the outcome of a decision, unless its segment is full by now."""
        with self._lock:
            if segment == self.segment:
                self._append(journal.execution_line(execution))

    def woken(self, wake: journal.Woken) -> None:
        """Write down that a frame ended a sleep."""
        with self._lock:
            self._append(journal.woken_line(wake))

    def _go_on(self) -> Controller | None:
        """Restore the policy as it was after the last decision of the last segment; None if that has another header, or is damaged."""
        paths = segments(self._folder)
        if not paths:
            return None
        self._path = paths[-1]
        text = self._path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            os.truncate(self._path, len(whole))
        try:
            header, entries = journal.read(whole.decode("utf-8", "replace").splitlines())
            if header != self.header:
                return None
            controller = Controller(self.header)
            for entry in entries:
                controller.decide(entry.sample)
        except UsageError as e:
            _log.warning("a journal is damaged; a new segment begins", journal=str(self._path), error=str(e))
            return None
        self.last_at_s = max((entry.sample.at_s for entry in entries), default=0.0)
        return controller

    def _begin(self) -> Controller:
        paths = segments(self._folder)
        number = int(paths[-1].stem) + 1 if paths else 1
        self._path = self._folder / f"{number:08d}.jsonl"
        controller = Controller(self.header)
        self._append(journal.first_line(self.header))
        for old in segments(self._folder)[:-KEPT_SEGMENTS]:
            old.unlink(missing_ok=True)
        return controller

    def _append(self, line: str) -> None:
        with open(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as file:
            file.write(line + "\n")


def segments(folder: Path) -> list[Path]:
    """The segments of a deployment's journal, oldest first."""
    return sorted(folder.glob("*.jsonl"))


def lines(journals: Path, deployment: str = "") -> Iterator[tuple[str, str, list[str]]]:
    """(deployment, segment, lines) of one deployment, or of all that have a journal, oldest first."""
    there = sorted(path.name for path in journals.iterdir()) if journals.is_dir() else []
    for name in [deployment] if deployment else there:
        for path in segments(journals / name) if name in there else []:
            try:
                text = path.read_text("utf-8", "replace")
            except FileNotFoundError:  # the oldest one, just removed
                continue
            yield name, path.stem, text.splitlines()


def prune(journals: Path, deployed: set[str], kept: int = KEPT_JOURNALS) -> None:
    """Remove the journals of undeployed deployments beyond `kept` folders, the least recently written first."""
    if not journals.is_dir():
        return
    gone = [path for path in journals.iterdir() if path.name not in deployed]
    gone.sort(key=lambda path: max((s.stat().st_mtime for s in segments(path)), default=0.0), reverse=True)
    for path in itertools.islice(gone, max(0, kept - len(deployed)), None):
        shutil.rmtree(path, ignore_errors=True)
