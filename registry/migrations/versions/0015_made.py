"""Successive deployments of the same name are told apart."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    with op.batch_alter_table("deployments") as table:
        table.add_column(sa.Column("made", sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("deployments") as table:
        table.alter_column("made", existing_type=sa.Integer(), existing_nullable=False, server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("deployments") as table:
        table.drop_column("made")
