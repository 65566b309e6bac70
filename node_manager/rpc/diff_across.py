"""The diff of a deployment whose slots are on several nodes: the called node compares its own slots, lets the others compare theirs, and
adds up the findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from threading import Event

from node_manager.deployments.across import Across
from node_manager.trials.mirrors import MirrorFindings
from node_manager.trials.together import together
from udo_protocol.errors import NodeAway, Unavailable
from udo_protocol.node import diff_reports
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.state.placement import Placement

# The diff of this node's own slots.
DiffHere = Callable[[pb.DiffRequest, Event], Iterator[MirrorFindings]]


def diff_across(across: Across, placed: Placement, request: pb.DiffRequest, here: DiffHere, stop: Event) -> Iterator[MirrorFindings]:
    """Yield the findings of all nodes as those of one diff. NodeAway or Unavailable, naming the node, if one cannot be asked."""
    nodes = list(dict.fromkeys(placed.nodes))
    asked = pb.DiffRequest()
    asked.CopyFrom(request)
    asked.here, asked.examples = True, -(-request.examples // len(nodes))
    runs = {node: here if node == across.node else partial(_there, across, node) for node in nodes}
    return together([run(asked, stop) for run in runs.values()], stop)


def _there(across: Across, node: str, request: pb.DiffRequest, stop: Event) -> Iterator[MirrorFindings]:
    try:
        events = across.connect(node).passed_on("Diff", request, None, streamed=True)
        try:
            for event in events:  # about one a second
                yield MirrorFindings(diff_reports.parse(event.report_json), list(event.examples_json))
                if stop.is_set():
                    return
        finally:
            events.close()
    except (NodeAway, Unavailable) as e:
        raise type(e)(f"slots of the deployment are on node {node}: {e}") from e
