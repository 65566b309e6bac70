"""The event of a failed update has an error code, which tells the operator's failure, a node that is away and a time-out apart."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    with op.batch_alter_table("update_events") as table:
        table.add_column(sa.Column("error_code", sa.String(), nullable=False, server_default=""))


def downgrade() -> None:
    with op.batch_alter_table("update_events") as table:
        table.drop_column("error_code")
