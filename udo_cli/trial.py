"""Options of `udo update --canary` and `--diff` (shares, files), and the output of a diff."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click

from udo_cli.exits import ExitCode

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


def progress(report: Json) -> str:
    """The findings so far, in one line."""
    errors = f", {report['errors_new']} errors of the new version" if report.get("errors_new") else ""
    missed = f", {report['missed']} missed" if report.get("missed") else ""
    return f"{report.get('frames', 0)} frames compared, {report.get('different', 0)} different{errors}{missed}"


def show(name: str, report: Json, examples: list[Json]) -> None:
    """Print the result of a diff: a table, the first differences, the first error."""
    from udo_cli import output

    r, serving = report, report["serving"]
    rows: list[tuple[str, Any, Any]] = [
        ("frames", "compared", r.get("frames", 0)),
        ("", "equal", r.get("equal", 0)),
        ("", "different", r.get("different", 0)),
        ("", "not compared: control frames, lanes that had failed", r.get("not_compared", 0)),
        ("", "missed: the new version was too slow", r.get("missed", 0)),
        ("rows", "served", r.get("rows", 0)),
        ("", "different", r.get("rows_different", 0)),
        *(("", f"different in {column}", n) for column, n in sorted((r.get("columns") or {}).items())),
        ("errors", f"of the serving version {r['serving_version']}", r.get("errors_served", 0)),
        ("", f"of the new version {r['version']}", r.get("errors_new", 0)),
        ("ms per frame", f"p50, p99 of {r['serving_version']}", f"{serving['p50_ms']:.2f}, {serving['p99_ms']:.2f}"),
        ("", f"p50, p99 of {r['version']}", f"{r.get('p50_ms', 0):.2f}, {r.get('p99_ms', 0):.2f}"),
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
    if error := r.get("first_error"):
        click.echo(f"\nthe first error of {r['version']}: {error['message']}\n{error['traceback']}")
    if died := r.get("died"):
        click.echo(f"\n{died}")
    said = {
        "equal": "gives the same answers as",
        "different": "gives other answers than",
        "nothing": "was not compared: no frame arrived for",
    }
    click.echo(f"\n{name}: {r['version']} {said[r['outcome']]} {r['serving_version']}")
