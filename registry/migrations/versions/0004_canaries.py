"""An update may begin with a canary: its settings, and each node's counters."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    with op.batch_alter_table("updates") as table:
        table.add_column(sa.Column("canary", sa.JSON(), nullable=True))
    with op.batch_alter_table("update_nodes") as table:
        table.add_column(sa.Column("measured", sa.JSON(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("update_nodes") as table:
        table.drop_column("measured")
    with op.batch_alter_table("updates") as table:
        table.drop_column("canary")
