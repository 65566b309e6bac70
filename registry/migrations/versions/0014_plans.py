"""Numbers of plans are ms since 1970, which need 64 bits."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    with op.batch_alter_table("settings") as table:
        table.alter_column("value", existing_type=sa.Integer(), type_=sa.BigInteger(), existing_nullable=False)


def downgrade() -> None:
    with op.batch_alter_table("settings") as table:
        table.alter_column("value", existing_type=sa.BigInteger(), type_=sa.Integer(), existing_nullable=False)
