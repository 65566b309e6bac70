"""A group map says over how many slots of its node the key groups are spread."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    with op.batch_alter_table("group_maps") as table:
        table.add_column(sa.Column("slots", sa.Integer(), nullable=False, server_default="1"))


def downgrade() -> None:
    with op.batch_alter_table("group_maps") as table:
        table.drop_column("slots")
