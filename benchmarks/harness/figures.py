"""Copies the latest figures into docs/performance.md, between marker comments, so that no figure there is typed by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks import module_of
from benchmarks.harness import page, record, tables
from benchmarks.harness.record import Record
from benchmarks.verification import attacks

DOCUMENT = Path(__file__).parents[2] / "docs" / "performance.md"
SANDBOX = DOCUMENT.with_name("sandbox.md")


def replace_between(text: str, name: str, content: str) -> str:
    """`text` with `content` between `<!-- figures:NAME -->` and `<!-- /figures:NAME -->`; ValueError if a marker is missing."""
    start, end = f"<!-- figures:{name} -->", f"<!-- /figures:{name} -->"
    before, found, rest = text.partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"expected the markers {start} and {end} in the document")
    return f"{before}{start}\n{content}\n{end}{after}"


def caption(made: Record) -> str:
    """The line under the tables: command, time, commit, machine, and versions."""
    m, v = made["machine"], made["versions"]
    return (
        f"`python -m benchmarks {' '.join(made['command'])}` on {made['time'][:10]}, commit {made['commit']}; "
        f"{m['cores']} cores ({m['cpu']}), {m['memory_gb']:g} GB, Linux {m['kernel']}, load average {m['load_at_start']:g} at the start; "
        f"Python {v['python']}, PySpark {v['pyspark']}, PyArrow {v['pyarrow']}."
    )


def newest(name: str, commit: str, driver: str = "process", results: Path = record.RESULTS) -> Record | str:
    """Return a suite's newest record of a full run of `commit` with this driver on a quiet machine, or why there is none. A suite may
    join several records (`together`). Trials with other options than those of page.RUNS do not count."""
    module = module_of(name)
    found = [r for r in record.runs(name, results) if r["arguments"].get("driver", driver) == driver and page.has(r)]
    fit = [r for r in found if not record.unfit(r, commit)]
    made: Record | None = module.together(fit) if hasattr(module, "together") else record.newest(fit)
    if made is not None:
        return made
    return f"{record.unfit(found[-1], commit)}; python -m benchmarks all" if found else "no run yet; python -m benchmarks all"


def copy_all(names: Iterable[str], commit: str, document: Path = DOCUMENT) -> Iterator[str]:
    """Copy the figures that exist for `commit`; yield a line on the result for each place."""
    text = document.read_text("utf-8")
    for name in names:
        module = module_of(name)
        for place, driver in ((name, "process"), (f"{name}_docker", "docker")):
            contained = place != name
            if f"<!-- figures:{place} -->" not in text:
                if not contained:
                    yield f"{name}: {document.name} has no place for it"
                continue
            made = newest(name, commit, driver)
            if isinstance(made, str):
                yield f"{place}: not copied: {made}"
                continue
            # Copy only the first two tables of a run in containers: the text on the contenders is above.
            sections = module.sections(record.decode(module.Figures, made))[: 2 if contained else None]
            text = replace_between(text, place, f"{tables.markdown(sections)}\n\n{caption(made)}")
            yield f"{place}: figures of {made['time']}"
    document.write_text(text, "utf-8")


def copy_attacks(commit: str, document: Path = SANDBOX, results: Path = record.RESULTS) -> str:
    """Copy the results of this commit's attacks on each driver; return a line on the result. The machine's load does not affect them."""
    made = [run for run in record.runs("attacks", results) if not run.get("only") and run["commit"] == commit]
    if not made:
        return f"attacks: not copied: no run of commit {commit}; python -m benchmarks attacks"
    found = [record.decode(attacks.Figures, run) for run in made]
    table = tables.markdown([attacks.comparison(found), attacks.refusals(found)])
    text = replace_between(document.read_text("utf-8"), "attacks", f"{table}\n\n{caption(made[-1])}")
    document.write_text(text, "utf-8")
    return f"attacks: {len(found)} run{'s' if len(found) > 1 else ''}, the newest of each driver"
