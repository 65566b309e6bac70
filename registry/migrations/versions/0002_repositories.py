"""Repositories hold any image: blobs, manifests and tags of their own; those of the operator versions so far are filled in."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def upgrade() -> None:
    holdings = op.create_table(
        "repository_blobs",
        sa.Column("repository", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("touched_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("repository", "digest"),
    )
    op.create_index("ix_repository_blobs_digest", "repository_blobs", ["digest"], unique=False)
    manifests = op.create_table(
        "manifests",
        sa.Column("repository", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("media_type", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("needs", sa.JSON(), nullable=False),
        sa.Column("pushed_at", sa.Double(), nullable=False),
        sa.Column("pushed_by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("repository", "digest"),
    )
    op.create_index("ix_manifests_subject", "manifests", ["subject"], unique=False)
    tags = op.create_table(
        "tags",
        sa.Column("repository", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("repository", "name"),
    )
    columns = ("name", "version", "digest", "created_at", "pushed_by")
    versions = sa.table("versions", *(sa.column(c) for c in columns), sa.column("blobs", sa.JSON()))
    held: dict[tuple[str, str], float] = {}
    connection = op.get_bind()
    for v in connection.execute(sa.select(versions)).all():
        needs = [d for d in v.blobs if d != v.digest]
        row = {"repository": v.name, "digest": v.digest, "media_type": OCI_MANIFEST, "subject": "", "needs": needs}
        connection.execute(manifests.insert().values(**row, pushed_at=v.created_at, pushed_by=v.pushed_by))
        connection.execute(tags.insert().values(repository=v.name, name=v.version, digest=v.digest))
        held |= {(v.name, d): v.created_at for d in needs}
    for (repository, digest), at in held.items():
        connection.execute(holdings.insert().values(repository=repository, digest=digest, touched_at=at))
    with op.batch_alter_table("versions") as table:
        table.drop_column("blobs")


def downgrade() -> None:
    raise NotImplementedError("the images that are no operators would be lost; restore a copy of the data directory instead")
