"""Applications: deployments named together, with an SLA and a journal of their manager's decisions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "applications",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("wish", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "application_lines",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("application", sa.String(), nullable=False),
        sa.Column("segment", sa.Integer(), nullable=False),
        sa.Column("line", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_application_lines_segment", "application_lines", ["application", "segment"])


def downgrade() -> None:
    op.drop_table("application_lines")
    op.drop_table("applications")
