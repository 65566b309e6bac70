"""A node knows itself which of its slots has which key group, since these move."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    with op.batch_alter_table("group_maps") as table:
        table.drop_column("slots")


def downgrade() -> None:
    with op.batch_alter_table("group_maps") as table:
        table.add_column(sa.Column("slots", sa.Integer(), nullable=False, server_default="1"))
