"""Wires submit. Production, the all-in-one and the simulation call this same ``build``."""

from __future__ import annotations

import secrets
from datetime import timedelta
from pathlib import Path

from libs.contracts.messages import Reemit
from libs.pods.pod_policy import PodPolicy, read_policy
from libs.service.definition import Ports, Service
from libs.service.prune import prune_loop
from libs.service.wiring import Wiring
from services.submit.attempts import UnknownAttempts
from services.submit.handlers import HANDLERS, READS, Commands, MakeId, prepare
from services.submit.ids import TimeSortedIds
from services.submit.settings import SubmitSettings
from services.submit.store import InventoryRow, OwnerRow, QuotaRow, ShapeRow, prune_rules
from services.submit.tables import TABLES


def build(settings: SubmitSettings, ports: Ports, *, make_id: MakeId | None = None) -> Service:
    """The service, not running. ``make_id`` replaces the random ids (a simulation's seed)."""
    policy_file = settings.pod_policy_file
    commands = Commands(
        rules=settings,
        make_id=make_id or TimeSortedIds(secrets.randbits),
        live_tasks_max=settings.live_tasks_per_user_max,
        reemit_tasks_max=settings.reemit_tasks_max,
        pods=read_policy(policy_file) if policy_file else PodPolicy(),
        needs_image=policy_file is not None,
    )

    async def on_lead(_epoch: int) -> None:
        """What every new task is compared with is small: keep it in memory."""
        await ports.store.make_resident(InventoryRow, ShapeRow, QuotaRow, OwnerRow)

    return Service(
        name="submit",
        ports=ports,
        handlers=HANDLERS,
        reads=READS,
        prepare=prepare,
        commands=commands.table(),
        on_lead=on_lead,
        loops=(
            UnknownAttempts(ports.store, ports.bus).loop(),
            prune_loop(
                "submit",
                ports.store,
                settings,
                *prune_rules(
                    timedelta(seconds=settings.tasks_keep_seconds),
                    timedelta(seconds=settings.removed_node_keep_seconds),
                    timedelta(seconds=settings.removed_quota_keep_seconds),
                ),
            ),
        ),
    )


WIRING = Wiring(
    name="submit",
    settings=SubmitSettings,
    build=build,
    tables=TABLES,
    migrations=Path(__file__).parent / "migrations",
    consumes=tuple(HANDLERS),
    requests=(Reemit,),
)
