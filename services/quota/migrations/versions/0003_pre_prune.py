"""Old rows are found by their age."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.create_index("inbox_seen_idx", "inbox", ["seen_at"], schema="quota")
    # No statement asks for it any more, and the code before this one is served by the new index.
    op.drop_index("inbox_seen_at_idx", table_name="inbox", schema="quota")
