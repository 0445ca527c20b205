"""``python -m services.launcher.raise_epoch EPOCH``: recovery after PostgreSQL was restored.

Nodes and clusters obey the launcher with the highest epoch so far. A database from a backup
continues from a lower one, so its launcher is refused ("a newer leader (epoch 57) commands
this cluster"). This command makes the launcher's next epoch greater than the one in that message.

A person has to run it: a launcher cannot know whether its database was restored, or whether
another live platform commands the same nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from libs.service.run import load_settings
from libs.store.connections import Address
from libs.store.leader import raise_epoch
from libs.store.port import StoreUnavailableError
from services.launcher.main import WIRING

EPOCH_MAX = 2**62


def _epoch(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= EPOCH_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an epoch; give the number that the launcher's log names"
        )
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Raise the epoch in the database that the launcher's environment names."""
    parser = argparse.ArgumentParser(
        prog="python -m services.launcher.raise_epoch",
        description="Let the launcher lead again after its database was restored from a backup."
        " Make sure first that no other launcher commands the same nodes.",
    )
    parser.add_argument("epoch", type=_epoch, help="the epoch that the launcher's log names")
    past: int = parser.parse_args(arguments).epoch
    settings = load_settings(WIRING)
    address = Address(settings.database_url, settings.database_password())
    try:
        found = asyncio.run(raise_epoch(address, WIRING.tables, past))
    except StoreUnavailableError as problem:
        sys.stderr.write(f"the database cannot be reached: {problem}\n")
        return 1
    sys.stdout.write(f"the launcher's next epoch is {found + 1}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
