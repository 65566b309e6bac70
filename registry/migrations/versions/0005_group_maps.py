"""A keyed session has a home: the node that holds its state."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "group_maps",
        sa.Column("deployment", sa.String(), nullable=False),
        sa.Column("session", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("incarnation", sa.String(), nullable=False),
        sa.Column("stored", sa.Boolean(), nullable=False),
        sa.Column("spread", sa.Boolean(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("deployment", "session"),
    )


def downgrade() -> None:
    op.drop_table("group_maps")
