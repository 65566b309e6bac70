"""A node is identified by its disk, too: after the loss of its disk it is another node."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    with op.batch_alter_table("nodes") as table:
        table.add_column(sa.Column("incarnation", sa.String(), nullable=False, server_default=""))


def downgrade() -> None:
    with op.batch_alter_table("nodes") as table:
        table.drop_column("incarnation")
