"""The tables. Times are seconds since the epoch; JSON columns hold data that is only stored and passed on."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Base(DeclarativeBase):
    """Root of all tables."""

    type_annotation_map = {dict[str, Any]: JSON, list[Any]: JSON}


class Version(Base):
    """An immutable operator version; its digest is that of its OCI manifest."""

    __tablename__ = "versions"
    __table_args__ = (UniqueConstraint("name", "version"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    version: Mapped[str]
    digest: Mapped[str] = mapped_column(unique=True)
    manifest: Mapped[dict[str, Any]]
    layers: Mapped[list[Any]]  # [{digest, size, kind}]
    created_at: Mapped[float]
    pushed_by: Mapped[str]


class Holding(Base):
    """A blob that a repository holds; its file is shared by all repositories."""

    __tablename__ = "repository_blobs"

    repository: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(primary_key=True, index=True)
    touched_at: Mapped[float]  # when a push last sent it or asked for it


class StoredManifest(Base):
    """An image manifest or index in a repository; its bytes are the blob of its digest."""

    __tablename__ = "manifests"

    repository: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(primary_key=True)
    media_type: Mapped[str]
    subject: Mapped[str] = mapped_column(index=True)  # digest of the manifest it is attached to, or empty
    needs: Mapped[list[Any]]  # digests of the blobs and manifests it refers to
    pushed_at: Mapped[float]
    pushed_by: Mapped[str]


class Tag(Base):
    """A name of a manifest. The tag of an operator version never moves."""

    __tablename__ = "tags"

    repository: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str]


class Deployment(Base):
    """An operator made callable under a name."""

    __tablename__ = "deployments"

    name: Mapped[str] = mapped_column(primary_key=True)
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"))
    env: Mapped[dict[str, Any]]
    secrets: Mapped[dict[str, Any]]
    files: Mapped[dict[str, Any]]  # path -> base64
    slots: Mapped[int]
    policy: Mapped[str]
    limits: Mapped[dict[str, Any]]
    previous: Mapped[list[Any]]  # [{version, digest}], the latest first
    generation: Mapped[int]
    made: Mapped[int]  # the generation it was deployed with; 0: by a release without such numbers
    created_at: Mapped[float]
    elasticity: Mapped[dict[str, Any] | None]  # elasticity.scaling.modes.Elasticity; null: its defaults
    placement: Mapped[dict[str, Any] | None]  # {version, nodes}: the node of each slot; null: `slots` on each node

    version: Mapped[Version] = relationship(lazy="joined")


class Application(Base):
    """Deployments that are named together, with an SLA."""

    __tablename__ = "applications"

    name: Mapped[str] = mapped_column(primary_key=True)
    wish: Mapped[dict[str, Any]]  # elasticity.scaling.application_wish.ApplicationWish
    created_at: Mapped[float]


class ApplicationLine(Base):
    """A line of an application's journal (elasticity/scaling/application_journal.py). Append-only; old segments are deleted as a whole."""

    __tablename__ = "application_lines"
    __table_args__ = (Index("ix_application_lines_segment", "application", "segment"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    application: Mapped[str]
    segment: Mapped[int]
    line: Mapped[str]


class Update(Base):
    """One live update or rollback of a deployment; `state` moves as udo_protocol.lifecycle.UPDATE allows."""

    __tablename__ = "updates"
    __table_args__ = (Index("ix_updates_deployment_state", "deployment", "state"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    deployment: Mapped[str]
    action: Mapped[str]  # update | rollback
    who: Mapped[str]
    address: Mapped[str]
    from_version: Mapped[str]
    from_digest: Mapped[str]
    to_version: Mapped[str]
    to_digest: Mapped[str]
    state: Mapped[str]
    detail: Mapped[str]
    started_at: Mapped[float]
    deadline_at: Mapped[float]
    timeout_s: Mapped[float]
    config: Mapped[dict[str, Any] | None]  # the new env, secrets and files, if they change; removed when it has ended
    canary: Mapped[dict[str, Any] | None]  # canaries.CanaryBody and `since`: when all nodes had begun, or null


class Participant(Base):
    """A node that takes part in an update: waiting -> ready -> answering, or gone; `measured` by its canary."""

    __tablename__ = "update_nodes"

    update_id: Mapped[str] = mapped_column(ForeignKey("updates.id", ondelete="CASCADE"), primary_key=True)
    node: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str]
    measured: Mapped[dict[str, Any] | None]  # canaries.Measured


class Event(Base):
    """One step of an update, as shown to its watchers."""

    __tablename__ = "update_events"

    id: Mapped[int] = mapped_column(primary_key=True)
    update_id: Mapped[str] = mapped_column(ForeignKey("updates.id", ondelete="CASCADE"), index=True)
    phase: Mapped[str]
    node: Mapped[str]
    detail: Mapped[str]
    at_ms: Mapped[float]  # since the request
    error_code: Mapped[str] = mapped_column(server_default="")  # of udo_protocol.errors, where something failed


class Node(Base):
    """A node manager that has reported in."""

    __tablename__ = "nodes"

    name: Mapped[str] = mapped_column(primary_key=True)
    address: Mapped[str]
    driver: Mapped[str]
    capabilities: Mapped[dict[str, Any]]
    metrics_address: Mapped[str]
    listen: Mapped[str] = mapped_column(server_default="")  # host:port for other hosts; empty: it has none
    last_seen: Mapped[float]
    incarnation: Mapped[str] = mapped_column(server_default="")  # of its state server: after the loss of its disk, another one


class NodeState(Base):
    """A node's last report about a deployment."""

    __tablename__ = "node_states"

    node: Mapped[str] = mapped_column(primary_key=True)
    deployment: Mapped[str] = mapped_column(primary_key=True, index=True)
    state: Mapped[str]
    version: Mapped[str]
    digest: Mapped[str]
    detail: Mapped[str]
    error_code: Mapped[str]
    at: Mapped[float]


class Epoch(Base):
    """The version that serves one epoch of a session, for calls with pin="epoch"."""

    __tablename__ = "epochs"

    deployment: Mapped[str] = mapped_column(primary_key=True)
    session: Mapped[str] = mapped_column(primary_key=True)
    epoch: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    version: Mapped[str]
    digest: Mapped[str]
    at: Mapped[float]


class GroupMap(Base):
    """The nodes with the keyed state of a session. Version 0 of the map names its first home; each release makes a new version."""

    __tablename__ = "group_maps"

    deployment: Mapped[str] = mapped_column(primary_key=True)
    session: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int]
    node: Mapped[str]  # empty: released, the next node that asks becomes the home
    incarnation: Mapped[str]  # of that node's state server: after the loss of its disk, a node is a different one
    others: Mapped[dict[str, Any]]  # node -> incarnation: for a deployment over nodes, the other nodes that have slots
    stored: Mapped[bool]  # has had a store since it began
    spread: Mapped[bool]  # other nodes have served it from its store: no node alone has all of its state
    at: Mapped[float]


class Audit(Base):
    """Audited actions: who, what, when, from which digest to which. Append-only."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float]
    who: Mapped[str]
    address: Mapped[str]
    action: Mapped[str]
    deployment: Mapped[str] = mapped_column(index=True)
    from_digest: Mapped[str]
    to_digest: Mapped[str]
    detail: Mapped[str]


class Setting(Base):
    """Single numbers: `generation` counts changes of the nodes' wanted state, `plans` is the highest number of a plan."""

    __tablename__ = "settings"

    key: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)
