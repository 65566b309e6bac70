"""The monitor's figures and the controllers' decisions, as messages."""

from __future__ import annotations

from collections.abc import Iterator

from node_manager.control import journals
from node_manager.control.looks import SlotRates
from node_manager.control.metering import Usage
from node_manager.manager import Manager
from udo_protocol.proto import node_manager_pb2 as pb


def signals(m: Manager, deployment: str) -> pb.SignalsReply:
    """The rates of the slots that get new lanes of a deployment, or of all deployments for ''. NotFound if there is no such deployment."""
    chosen = [m.deployments.find(deployment)] if deployment else m.deployments.all()
    return pb.SignalsReply(
        node=m.settings.node,
        node_use=m.monitor.node_use,
        cores=m.monitor.cores,
        window_s=m.monitor.window_s,
        watched_s=m.monitor.watched_s,
        monitor_cpu_s=m.monitor.cpu_s,
        slots=[_slot(d.name, own.number, m.monitor.rates(d.name, own.number)) for d in chosen for own in d.own],
        rules={d.name: rules for d in chosen if (rules := m.plant.controlled(d).wish.settings.get("rules"))},
    )


def decisions(m: Manager, deployment: str) -> Iterator[pb.DecisionLines]:
    """The journals on disk, also of undeployed deployments. NotFound if there is neither a journal nor a deployment."""
    found = False
    for name, segment, lines in journals.lines(m.settings.journals, deployment):
        found = True
        yield pb.DecisionLines(deployment=name, segment=segment, lines=lines)
    if deployment and not found:
        m.deployments.find(deployment)


def usage(m: Manager, deployment: str) -> pb.UsageReply:
    """The usage of a deployment, or of all for ''. NotFound if nothing is known of that deployment."""
    found = m.meter.usage()
    if deployment and deployment not in found:
        m.deployments.find(deployment)
    return pb.UsageReply(node=m.settings.node, deployments=[_usage(name, used) for name, used in found.items() if deployment in ("", name)])


def _usage(deployment: str, used: Usage) -> pb.DeploymentUsage:
    return pb.DeploymentUsage(
        deployment=deployment,
        since=used.since,
        until=used.until,
        events_in=int(used.events_in),
        events_out=int(used.events_out),
        bytes_in=int(used.bytes_in),
        bytes_out=int(used.bytes_out),
        cpu_s=used.cpu_s,
        state_byte_hours=used.state_byte_hours,
        query_state_byte_hours=used.queries,
    )


def _slot(deployment: str, number: int, seen: SlotRates | str) -> pb.SlotSignals:
    if isinstance(seen, str):
        return pb.SlotSignals(deployment=deployment, slot=number, missing=seen)
    return pb.SlotSignals(
        deployment=deployment,
        slot=number,
        cpu=seen.cpu,
        memory=seen.memory,
        busy=seen.busy,
        arrivals=seen.arrivals,
        answers=seen.answers,
        outputs=seen.outputs,
        backlog=seen.backlog,
        growth=seen.growth,
        service_ms=seen.service_ms,
        response_ms=seen.response_ms,
        lanes=seen.lanes,
        rss_bytes=seen.rss_bytes,
        held=seen.held,
    )
