"""An update may change a deployment's variables, secrets and files: its new values, until it has ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    with op.batch_alter_table("updates") as table:
        table.add_column(sa.Column("config", sa.JSON(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("updates") as table:
        table.drop_column("config")
