"""Writes docs/papers.md: each paper's figures beside those measured here, from the newest records; none of the latter is typed by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.harness import figures, tables
from benchmarks.harness.record import Record
from benchmarks.harness.tables import Section

DOCUMENT = figures.DOCUMENT.with_name("papers.md")
DRAWINGS = DOCUMENT.with_name("figures")
HEADER = ("", "paper", "here")


def latency(made: Record) -> list[Section]:
    """Paper 1, "Operator as a service": added latency of its two queries at its rates."""
    paper = {"10000": "1.92", "100000": "2.87"}
    rows = [
        (f"mean added latency at {int(rate):,} events/s, ms", paper.get(rate, "not given"), f"{found['mean_ms']:.2f}")
        for rate, found in made["rates"].items()
    ]
    return [Section("Added latency of an event", HEADER, rows, f"Paper: 24 cores. Here: {made['machine']['cores']} cores.")]


def update(made: Record) -> list[Section]:
    """Paper 1: replacing the operator while the query runs."""
    rows = [
        ("live update, ms", "238 (mean)", f"{made['request_to_answer_ms']['p50']:.0f} (median)"),
        ("longest gap between answers meanwhile, ms", "no downtime", f"{made['pause_ms']['p99']:.1f} (99th percentile)"),
        ("events lost / doubled / out of order", "not given", f"{made['lost']} / {made['duplicated']} / {made['reordered']}"),
    ]
    return [Section("Live update", HEADER, rows)]


def redeploy(made: Record) -> list[Section]:
    """Paper 1: redeploying the query, which a live update replaces."""
    rows = [
        ("the query is redeployed, longest gap, ms", "8,600 (Flink)", f"{made['redeploy']['gap_ms']['p50']:,.0f} (median)"),
        ("live update in the same stream, longest gap, ms", "no downtime", f"{made['live_update']['gap_ms']['p50']:,.0f}"),
        ("usual time between two micro-batches, ms", "no micro-batches", f"{made['live_update']['usual_ms']:,.0f}"),
    ]
    return [Section("Live update against redeploying the query", HEADER, rows)]


def balance(made: Record) -> list[Section]:
    """Paper 2: policies at exponents 0.2 and 1.5 in turn, against key grouping on five engines."""
    paper = {  # × KG(5) by the events it processed (its tables); keys moved per rebalance, in percent
        "KG": ("1", "0"),
        "KG6": ("1.03", "0"),
        "LPTF": ("not given", "76"),
        "DLB-L": ("not given", "30 to 47"),
        "DLB-H": ("1.08", "5 to 10"),
        "PKG": ("1.09", "splits keys"),
    }
    engines = {True: "simulated", False: "real engines"}[made["simulated"]]
    header = ("policy", "paper, × KG", f"here, × KG ({engines})", "of what whole keys allow", "paper, keys moved %", "here")
    rows = []
    for name, p in made["policies"].items():
        times_kg, moved = paper.get(name, ("not in it", "not in it"))
        rows.append(
            (name, times_kg, *(f"{p[k]:.2f}" for k in ("throughput_vs_kg", "throughput_vs_bound")), moved, f"{p['keys_moved_percent']:.1f}")
        )
    return [Section("Balancing: Zipf 0.2 / 1.5 alternating", header, rows)]


def scale_out(made: Record) -> list[Section]:
    """Paper 3: the effect of each way to scale out on the stream; the paper has curves only."""
    said = {
        "active_backup": ("active backup", "almost none", "between δ2′ and δ2"),
        "checkpoint": ("checkpoint", "a little more", "none"),
        "stop_and_restart": ("stop and restart", "rises until the restart; no throughput in it", "none"),
    }
    header = (
        "",
        "paper: latency",
        "here: p99, × the normal one",
        "longest gap, ms",
        "fairness degree",
        "paper: extra slots",
        "here: slot seconds",
    )
    rows = []
    for name, (text, bump, extra) in said.items():
        of = made[name]
        figures_of = (f"{of['latency_bump']:.2f}", f"{of['downtime_ms']:,.0f}", f"{of['fairness']:.2f}")
        rows.append((text, bump, *figures_of, extra, f"{of['resource_seconds']:.1f}"))
    return [Section("Scaling out a stateful operator while the rate doubles", header, rows)]


def bottleneck(made: Record) -> list[Section]:
    """Paper 3: the fuzzy detection beside the detection by processor use, as in an autoscaler."""
    where = "simulated" if made["simulated"] else "real deployments"
    rows = []
    for name, d in (("fuzzy detection", made), ("mean CPU above 80 %", made["threshold_baseline"])):
        delay = "never" if d["delay_s"] is None else f"{d['delay_s']:.3g}"
        rows.append((name, "not given", f"{100 * d['hit_rate']:.1f}", f"{100 * d['false_alarm_rate']:.1f}", delay))
    header = ("detector", "paper", "found, %", "false alarms, %", "delay, s (median)")
    return [Section(f"Injected bottlenecks ({where})", header, rows, f"{made['episodes']} episodes.")]


def checkpoint_allocation(made: Record) -> list[Section]:
    """Paper 4: the placement of checkpoints decides how often load can move to one."""
    rows = [
        ("moves to a node that has the checkpoint, × even distribution", "2", f"{made['assisted_vs_even']:.2f}"),
        ("checkpoints that can be used, × even distribution", "2 to 3", f"{made['usable_vs_even']:.2f}"),
    ]
    return [Section("Checkpoint allocation (simulated)", HEADER, rows)]


def elasticity(made: Record) -> list[Section]:
    """Paper 5: availability of the application under each global policy."""
    paper = {"accept_all_paused": "93.7", "pause_and_resume": "98.3 (β = 0.75)"}
    texts = {"accept_all_paused": "every request granted, pause and resume", "pause_and_resume": "token bucket, pause and resume"}
    texts |= {"accept_all": "every request granted, live steps", "edf_0.75": "token bucket, live steps", "ds2": "ds2, live steps"}
    found, where = made["policies"], "simulated" if made["simulated"] else "real deployments"
    rows = [
        (text, paper.get(name, "not in it"), f"{found[name]['availability_percent']:.2f}") for name, text in texts.items() if name in found
    ]
    return [Section(f"Availability of the application, % ({where})", HEADER, rows), *(elasticity(made["model"]) if "model" in made else [])]


SUITES: dict[str, Callable[[Record], list[Section]]] = {
    f.__name__: f for f in (latency, update, redeploy, balance, scale_out, bottleneck, checkpoint_allocation, elasticity)
}


def copy_all(commit: str, document: Path = DOCUMENT, drawings: Path = DRAWINGS) -> Iterator[str]:
    """Write the tables and drawings of the suites that have run on `commit`; yield a line on the result for each."""
    text = document.read_text("utf-8")
    for name, sections in SUITES.items():
        made = figures.newest(name, commit)
        if isinstance(made, str):
            yield f"papers, {name}: not copied: {made}"
            continue
        text = figures.replace_between(text, name, f"{tables.markdown(sections(made))}\n\n{figures.caption(made)}")
        yield f"papers, {name}: figures of {made['time']}"
        if "timeline" in made:
            draw(made["timeline"], drawings / f"{name}.svg")
    document.write_text(text, "utf-8")


def draw(timeline: dict[str, list[list[float]]], path: Path) -> None:
    """Draw throughput and imbalance over time, a line per policy. `timeline`: per epoch [seconds, events/s, imbScore in percent]."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "udo", "font.size": 9}):
        drawing = Figure(figsize=(8, 5), layout="constrained")
        rate, imbalance = drawing.subplots(2, sharex=True)
        for name, epochs in timeline.items():
            at, per_s, score = zip(*epochs, strict=True)
            rate.plot(at, per_s, label=name)
            imbalance.plot(at, score, label=name)
        rate.set_ylabel("events/s")
        rate.legend(ncols=len(timeline), fontsize=8)
        imbalance.set_ylabel("imbalance, %")
        imbalance.set_xlabel("seconds")
        path.parent.mkdir(exist_ok=True)
        drawing.savefig(path, metadata={"Date": None})
