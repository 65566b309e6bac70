"""A keyed session of a deployment over nodes has its state on all of them; each is identified by its disk."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    with op.batch_alter_table("group_maps") as table:
        table.add_column(sa.Column("others", sa.JSON(), nullable=False, server_default="{}"))


def downgrade() -> None:
    with op.batch_alter_table("group_maps") as table:
        table.drop_column("others")
