"""`python -m benchmarks NAME`: runs one suite, appends its record, prints a table, or with --json the record as the last line.

Exit status 1 says that the run is invalid (a mismatch, a lost event, a peer that did not start), never that a figure is low.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import click

from benchmarks import module_of
from benchmarks.harness import record
from benchmarks.harness.bringup import fresh, say
from benchmarks.harness.rules import InvalidRun
from udo_protocol.errors import UsageError

SUITES = {
    "demo": "The README's main job as it is: events per second, and where a micro-batch's time goes.",
    "throughput": "Events per second of one function called from Spark in ten ways.",
    "micro_batch": "What a micro-batch costs before its rows do: without operators, with two, on either path.",
    "real_time": "The latency of an event in Spark's real-time mode: without an operator, with one, and with mapInArrow.",
    "latency": "Added round trip of an event at three rates, and the processor time of an idle instance.",
    "codec": "The event path's commands through the own RESP codec and through redis-py with hiredis, in turn.",
    "remote": "A slot through TLS, as from another host, against its Unix socket: throughput and round trip.",
    "backoff": "Linear back-off before sleeping: latency against processor time, at four ceilings.",
    "update": "Live updates under load: preparation, time to the first new answer, gap, order.",
    "redeploy": "A new version in a running Spark query: a live update against redeploying the query.",
    "migration": "Key groups that move under load: pause and duration by state and replay; a rebalance in rounds.",
    "between_nodes": "Key groups that move to another node under load: pause and duration by state.",
    "scale_out": "Scaling out a stateful operator under load: active backup, checkpoint, stop-and-restart.",
    "diff": "What a diff costs the serving version's throughput.",
    "exactly_once": "Seeded chaos: keyed answers and state against one plain process, with and without Spark.",
    "state": "A running count per key: against Spark's stateful operators, and without state; restoring it.",
    "languages": "Forward, filter and keyed count per language, in batches and event by event, against Python.",
    "conformance": "The operator protocol's cases over every language and Python; the time of a frame.",
    "second_store": "A micro-batch of a keyed query without and with a state store in files.",
    "registry_layers": "Push and pull of a 500 MB layer against copying it; udo push of changed code.",
    "attacks": "A hostile operator against its node: what is blocked, what the driver does not isolate.",
    "checkpoint_allocation": "Simulated: how often load moves to where a checkpoint lies, for four ways to allocate checkpoints.",
    "balance": "Balancing keys between engines: each policy against static grouping and what whole keys allow.",
    "bottleneck": "Bottlenecks injected into real deployments, or simulated: found, missed, false alarms, delay.",
    "elasticity": "Scaling policies on a day of the top-10 routes: real deployments, or simulated with a large cluster.",
    "fuzz_layers": "50,000 mutated layers: each is refused, or unpacked exactly, within bounds of time and memory.",
    "fuzz_frames": "Mutated frames: each a typed error or a right answer, never a crash, never foreign bytes.",
    "validation": "What validating every body costs: events per second with it, against without.",
    "node_loss": "From the loss of a node, killed or cut off, to the next answer of slots that have replicas.",
    "recovery": "From the death of a keyed instance, or of a server, to the next answer.",
}
# Suites with options of their own, listed in their module's OPTIONS.
WITH_OPTIONS = (
    "attacks",
    "balance",
    "between_nodes",
    "bottleneck",
    "checkpoint_allocation",
    "elasticity",
    "exactly_once",
    "migration",
    "update",
)
# These try new inputs in each run, and print the seed that repeats a failure.
FRESH = ("fuzz_layers", "fuzz_frames")
EXIT_INVALID = 1


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog="Example: python -m benchmarks throughput --quick")
def main() -> None:
    """Measure what the platform costs. Every run is appended to benchmarks/results/NAME.jsonl."""
    # A run that gets SIGTERM (timeout, a supervisor) stops the platform it started, as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _suite(name: str, text: str) -> click.Command:
    @click.command(name, help=f"{text}\n\nExample: python -m benchmarks {name} --quick --json", short_help=text)
    @click.option("--quick", is_flag=True, help="A smaller run of the same thing, within 50 s after start-up.")
    @click.option("--json", "as_json", is_flag=True, help="The record as one JSON object on the last line of standard output.")
    @click.option("--driver", type=click.Choice(["process", "docker"]), default="process", show_default=True, help="How instances run.")
    @click.option(
        "--seed", type=int, default=fresh if name in FRESH else 1, show_default="fresh" if name in FRESH else "1", help="Seed of the input."
    )
    def suite(quick: bool, as_json: bool, driver: str, seed: int, **own: Any) -> None:
        from benchmarks.harness import tables
        from udo_cli.platform.local import interruptible

        module = module_of(name)
        if name in FRESH:
            say(f"the same once more: --seed {seed}")
        arguments = {"quick": quick, "driver": driver, "seed": seed, **own}
        try:
            # A benchmark that is stopped (Ctrl-C, or `timeout`) stops what it has started, too.
            began, command = record.commit(), [name, *(a for a in sys.argv[2:] if a != "--json")]
            with interruptible():
                found = module.run(**arguments)
                made = record.stamp(name, command, arguments, found, began)
        except InvalidRun as e:
            print(f"benchmarks: the run is invalid: {e}", file=sys.stderr)
            sys.exit(EXIT_INVALID)
        except UsageError as e:
            raise click.UsageError(str(e)) from e
        record.append(made)
        if as_json:
            print(json.dumps(made), flush=True)
        else:
            tables.show(module.sections(found))

    if name in WITH_OPTIONS:
        for option in reversed(module_of(name).OPTIONS):
            suite = option(suite)
    return suite


for _name, _text in SUITES.items():
    main.add_command(_suite(_name, _text))


@main.command("all")
@click.option("--only", multiple=True, metavar="NAME", help="Only runs of this suite; may be given several times.")
@click.option(
    "--wait-min", type=click.FloatRange(0), default=30, show_default=True, help="Give up when the machine stays busy for this long."
)
@click.option("--dry-run", is_flag=True, help="List the runs and which of them are there already.")
def everything(only: tuple[str, ...], wait_min: float, dry_run: bool) -> None:
    """Make the runs whose figures docs/performance.md and docs/papers.md show, each on a quiet machine and on this commit.

    Runs that exist already are skipped, so that a command that was stopped continues where it was.

    Example: python -m benchmarks all --only throughput --only latency
    """
    from benchmarks.harness import page

    if unknown := set(only) - {name for name, *_ in page.RUNS}:
        raise click.UsageError(f"--only: expected one of {', '.join(dict.fromkeys(n for n, *_ in page.RUNS))}, got {', '.join(unknown)}")
    commit = record.commit()
    if commit == "unknown" or commit.endswith("+"):
        raise click.ClickException(f"expected a checkout without changes, since figures belong to a commit; got {commit}")
    runs = [run for run in page.RUNS if not only or run[0] in only]
    sys.exit(0 if page.make(runs, commit, wait_min * 60, dry_run=dry_run) else EXIT_INVALID)


@main.command("figures")
@click.option("--commit", help="Commit whose figures are shown.  [default: the one that is checked out]")
def figures(commit: str | None) -> None:
    """Copy a commit's newest figures into docs/performance.md and docs/papers.md, and the results of the attacks into docs/sandbox.md.

    Quick runs, runs on a busy machine, and runs of files that differed from the commit are refused.

    Example: python -m benchmarks figures
    """
    from benchmarks.harness import papers
    from benchmarks.harness.figures import copy_all, copy_attacks

    of = (commit or record.commit())[: record.DIGITS].removesuffix("+")
    for line in (*copy_all((name for name in SUITES if name != "attacks"), of), *papers.copy_all(of), copy_attacks(of)):
        print(line)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
