"""A starting manager takes over from the former one: it adopts running instances and starts everything else again."""

from __future__ import annotations

import contextlib
from collections import defaultdict

import structlog

from node_manager.config import InstanceConfig
from node_manager.deployments.deployments import Deployments
from node_manager.deployments.lanes import Lanes
from node_manager.deployments.scale_out import STANDS_READY
from node_manager.deployments.scaling import Scaling
from node_manager.images.images import Images
from node_manager.instances.instances import ENGINE, Instance
from node_manager.slots.loading import NodeParts, Wanted
from node_manager.slots.slot import Slot
from node_manager.trials.mirrors import Mirrors
from udo_protocol.errors import UdoError
from udo_protocol.queue import slot as log

_log = structlog.get_logger()


def adopt(node: NodeParts, images: Images, deployments: Deployments, scaling: Scaling, lanes: Lanes, mirrors: Mirrors) -> None:
    """Adopt running instances into the slots of the deployments in the node's file, and stop the other ones."""
    running = node.instances.recover()
    warm = [i for i in running if i.record is None and i.life.state == "warm"]
    node.pool.start([i for i in warm if i.kind != ENGINE])
    node.engines.start([i for i in warm if i.kind == ENGINE])
    assigned: dict[tuple[str, int], list[Instance]] = defaultdict(list)
    for instance in running:
        if instance.record is not None:
            assigned[instance.record.deployment, instance.record.slot].append(instance)
        elif instance.life.state != "warm":
            node.instances.stop(instance, 0)

    def take(slot: Slot, config: InstanceConfig) -> bool:
        """Adopt the owner that a former manager left in a slot, and remove standbys of its updates. Return whether an owner was adopted."""
        left, adopted = assigned.pop((slot.deployment, slot.number), []), False
        with contextlib.closing(node.servers.connect("queue")) as queue:
            owner_token = log.owner(queue, slot.keys)
        for instance in left:
            if instance.assigned.comparing:  # its diff ended with the manager that ran it
                mirrors.remove(instance, slot.keys)
                continue
            image = None
            if instance.token == owner_token:
                with contextlib.suppress(UdoError):
                    image = images.get(instance.assigned.operator, digest=instance.assigned.digest)
            if image is None:
                node.instances.stop(instance, node.settings.stop_grace_s)
            else:
                slot.adopt(instance, Wanted(image, config))
                adopted = True
        return adopted

    for deployment, more, leaving in deployments.load():
        config = deployment.config.instance
        take(deployment.slot, config)
        for digest, number in list(deployment.numbers.items()):
            if (deployment.name, number) in assigned:
                take(lanes.slot(deployment, digest, number), config)
            else:  # it is started again, under a new number, at the next request
                del deployment.numbers[digest]
        for number in more:
            slot = deployment.more[number] = scaling.new(deployment, number)
            take(slot, config)
        for number in deployment.preparation.numbers if deployment.preparation else ():
            slot = deployment.prepared[number] = scaling.new(deployment, number, pinned=STANDS_READY)
            take(slot, config)
        for number in leaving:
            slot = deployment.beside[number] = scaling.new(deployment, number, pinned="canary")
            if take(slot, config):
                deployment.adopted.add(number)
            else:
                scaling.follow(deployment, only=slot)
    for strays in assigned.values():
        for instance in strays:
            node.instances.stop(instance, node.settings.stop_grace_s)
    for deployment in deployments.all():
        try:
            for slot in deployment.own:
                slot.serve(deployments.serving(deployment))
        except UdoError as e:  # without the image and the registry the deployment stays as it is
            _log.warning("wanted version is not available", deployment=deployment.name, version=deployment.version, error=str(e))
