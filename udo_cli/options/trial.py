"""Options of `udo update --canary` and `--diff` (shares, files), and the output of a diff."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from udo_cli.exits import ExitCode
from udo_cli.options.durations import Duration
from udo_cli.options.typed import option

if TYPE_CHECKING:
    from udo_protocol.diff_report import DiffReport

Json = dict[str, Any]
_SHOWN = 10
EXITS = {"equal": ExitCode.OK, "different": ExitCode.DIFFERENT, "nothing": ExitCode.NOTHING_COMPARED}
_SUFFIXES = (".jsonl", ".parquet")


def share(text: str) -> float:
    """Parse a share such as 10% or 0.5%; return it in percent."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)%?", text)
    if found is None or not 0 < float(found[1]) <= 100:
        raise click.BadParameter(f"expected a share above 0% and up to 100%, such as 10%, got {text!r}")
    return float(found[1])


def condition(text: str) -> str:
    """A condition of udo_protocol.registry.canary, checked before any request to the registry."""
    from udo_protocol.errors import UsageError
    from udo_protocol.registry.canary import Condition

    try:
        return str(Condition.parse(text))
    except UsageError as e:
        raise click.BadParameter(str(e)) from None


def output_file(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """A path for the output, .jsonl or .parquet."""
    if path is not None and path.suffix not in _SUFFIXES:
        raise click.BadParameter(f"expected a file that ends with {' or '.join(_SUFFIXES)}, got {str(path)!r}")
    if path is not None and not path.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no directory {path.absolute().parent}")
    return path


@dataclass(frozen=True)
class TrialOptions:
    """How a version is tried before it answers, if at all."""

    diff: bool = option(is_flag=True, help="Only compare the answers of VERSION with those of the serving version; nothing changes.")
    canary: float | None = option(
        type=share, metavar="PERCENT", help="First test VERSION on a share of the new lanes (keyed: of the key groups)."
    )
    for_s: float | None = option("--for", type=Duration(), metavar="TIME", help="How long the diff or the canary lasts.  [default: 60s]")
    rollback_if: tuple[str, ...] = option(
        type=condition,
        multiple=True,
        metavar="CONDITION",
        help="Roll a canary back if this holds: events, errors, error_rate, p50_ms, p99_ms or (keyed) different, then >, >=, < or <=, then "
        "a number. May be repeated.",
    )
    min_events: int | None = option(type=click.IntRange(0), help="Roll a canary back that has fewer events.  [default: 1]")
    promote: bool = option(is_flag=True, help="End the canary of NAME now, as one that has passed.")
    out: Path | None = option(
        "-o",
        "--output",
        type=click.Path(dir_okay=False, writable=True, path_type=Path),
        callback=output_file,
        help="Write the differences of a diff to this .jsonl or .parquet file.",
    )

    def require_consistent(self) -> None:
        """click.UsageError if an option is given without the one that it belongs to."""
        if self.diff and self.canary is not None:
            raise click.UsageError("--diff and --canary exclude each other: run a diff first, then a canary")
        for said, flag, needed, there in (
            (bool(self.rollback_if), "--rollback-if", "--canary", self.canary is not None),
            (self.min_events is not None, "--min-events", "--canary", self.canary is not None),
            (self.out is not None, "--output", "--diff", self.diff),
            (self.for_s is not None, "--for", "--canary or --diff", self.diff or self.canary is not None),
        ):
            if said and not there:
                raise click.UsageError(f"{flag} can only be used with {needed}")

    def canary_wish(self) -> Json | None:
        """The canary as a registry takes it; None without one."""
        if self.canary is None:
            return None
        least = 1 if self.min_events is None else self.min_events
        return {"percent": self.canary, "for_s": self.for_s or 60.0, "rollback_if": list(self.rollback_if), "min_events": least}


def write(path: Path, examples: list[Json]) -> None:
    """Write differences as JSON lines, or as parquet with events and answers as JSON text, since their columns are the operator's."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(e, ensure_ascii=False) + "\n" for e in examples), "utf-8")
        return
    import pyarrow as pa
    import pyarrow.parquet

    text = pa.string()
    schema = pa.schema(
        [("lane", text), ("frame", pa.int64()), ("row", pa.int64()), ("columns", pa.list_(text)), ("why", text)]
        + [(name, text) for name in ("event", "served", "new")]
    )
    rows = [e | {n: None if e[n] is None else json.dumps(e[n], ensure_ascii=False) for n in ("event", "served", "new")} for e in examples]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def progress(report: DiffReport) -> str:
    """The findings so far, in one line."""
    errors = f", {report.errors_new} errors of the new version" if report.errors_new else ""
    missed = f", {report.missed} missed" if report.missed else ""
    return f"{report.frames} frames compared, {report.different} different{errors}{missed}"


def show(name: str, r: DiffReport, examples: list[Json]) -> None:
    """Print the result of a diff: a table, the first differences, the first error."""
    from udo_cli.text import output

    rows: list[tuple[str, Any, Any]] = [
        ("frames", "compared", r.frames),
        ("", "equal", r.equal),
        ("", "different", r.different),
        ("", "not compared: control frames, lanes that had failed", r.not_compared),
        ("", "missed: the new version was too slow", r.missed),
        ("rows", "served", r.rows),
        ("", "different", r.rows_different),
        *(("", f"different in {column}", n) for column, n in sorted(r.columns.items())),
        ("errors", f"of the serving version {r.serving_version}", r.errors_served),
        ("", f"of the new version {r.version}", r.errors_new),
        ("ms per frame", f"p50, p99 of {r.serving_version}", f"{r.serving.p50_ms:.2f}, {r.serving.p99_ms:.2f}"),
        ("", f"p50, p99 of {r.version}", f"{r.p50_ms:.2f}, {r.p99_ms:.2f}"),
    ]
    output.table(("DIFF", "", ""), rows, "")
    for example in examples[:_SHOWN]:
        where = f"lane {example['lane']}, frame {example['frame']}, row {example['row']}"
        click.echo(f"\n{where}: {example['why'] or 'in ' + ', '.join(example['columns'])}")
        for key in ("event", "served", "new"):
            if example[key] is not None:
                click.echo(f"  {key:<7}{json.dumps(example[key], ensure_ascii=False)}")
    if len(examples) > _SHOWN:
        click.echo(f"\n... and {len(examples) - _SHOWN} more; -o FILE writes them all")
    if r.first_error is not None:
        click.echo(f"\nthe first error of {r.version}: {r.first_error.message}\n{r.first_error.traceback}")
    if r.died:
        click.echo(f"\n{r.died}")
    said = {
        "equal": "gives the same answers as",
        "different": "gives other answers than",
        "nothing": "was not compared: no frame arrived for",
    }
    click.echo(f"\n{name}: {r.version} {said[r.outcome]} {r.serving_version}")
