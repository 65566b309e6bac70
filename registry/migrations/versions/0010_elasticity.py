"""A deployment may have settings for the controllers of its number of slots."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    with op.batch_alter_table("deployments") as table:
        table.add_column(sa.Column("elasticity", sa.JSON(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("deployments") as table:
        table.drop_column("elasticity")
