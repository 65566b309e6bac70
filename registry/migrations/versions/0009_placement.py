"""A deployment may name the node of each of its slots, and a node has an address for other hosts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    with op.batch_alter_table("deployments") as table:
        table.add_column(sa.Column("placement", sa.JSON(), nullable=True))
    with op.batch_alter_table("nodes") as table:
        table.add_column(sa.Column("listen", sa.String(), nullable=False, server_default=""))


def downgrade() -> None:
    with op.batch_alter_table("nodes") as table:
        table.drop_column("listen")
    with op.batch_alter_table("deployments") as table:
        table.drop_column("placement")
