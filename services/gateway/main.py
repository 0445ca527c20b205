"""Wiring: the gateway's parts from settings and ports. The only place that constructs adapters."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path

from libs.contracts import messages as m
from libs.service.clock import Clock
from libs.service.loop import Loop
from libs.service.prune import prune_loop
from libs.service.shape import Ports, Service
from libs.service.stream_watch import StreamWatch
from libs.service.wiring import Wiring
from services.gateway import eventlog
from services.gateway.api.app import create_app
from services.gateway.api.deps import Context
from services.gateway.auth import Authenticator, Mint, ensure_first_admin
from services.gateway.commands import Commands
from services.gateway.handlers import HANDLERS, READS
from services.gateway.live import Gate, Live
from services.gateway.loop import Housekeeping, Rebuild
from services.gateway.refusals import Refusals, WrongTokens
from services.gateway.rows import EventHeadRow
from services.gateway.settings import GatewaySettings
from services.gateway.store import old_rows
from services.gateway.tables import TABLES

TOKEN_PREFIX = "swt_"  # noqa: S105 - what a token begins with is no secret
TOKEN_BYTES = 32
ID_RANDOM_BYTES = 4
REBUILD_IDLE_SECONDS = 3600.0


def minting(clock: Clock) -> Mint:
    """Secrets from the operating system; ids that sort by time."""

    def new_id() -> str:
        milliseconds = int(clock.now().timestamp() * 1000)
        raw = milliseconds.to_bytes(6, "big") + secrets.token_bytes(ID_RANDOM_BYTES)
        return base64.b32hexencode(raw).decode().lower()

    return Mint(
        secret=lambda: TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES),
        id=new_id,
    )


def build(settings: GatewaySettings, ports: Ports, mint: Mint | None = None) -> Service:
    """The gateway, wired but not running."""
    live = Live(
        ports.store,
        pending_max=settings.stream_pending_max,
        page=settings.stream_page,
        poll_seconds=settings.poll_seconds,
        poll_leading_seconds=settings.poll_leading_seconds,
    )
    ports.store.observe(live.observe)
    commands = Commands(
        ports.bus,
        timeout_seconds=settings.command_timeout_seconds,
        retry_after_seconds=settings.retry_after_seconds,
    )
    authenticator = _authenticator(settings, ports)
    made = mint or minting(ports.clock)
    refusals = Refusals(ports.store, ports.clock, made.id, settings.refusals_seconds)
    parts = Context(
        settings=settings,
        store=ports.store,
        clock=ports.clock,
        bus=ports.bus,
        commands=commands,
        authenticator=authenticator,
        live=live,
        streams=Gate(settings.streams_max, settings.streams_per_user_max),
        waits=Gate(settings.waits_max, settings.waits_per_task_max),
        mint=made,
        wrong_tokens=_wrong_tokens(settings, ports.clock),
        refusals=refusals,
    )

    async def on_lead(epoch: int) -> None:
        """The event log's end is read at every event: keep it in memory. What followed the commits
        of an earlier term is not trusted: that term may have ended because it could not follow."""
        live.read_again()
        authenticator.forget()
        await ports.store.make_resident(EventHeadRow)
        async with ports.store.transaction(epoch=epoch) as tx:
            await ensure_first_admin(tx)

    watch = StreamWatch("gateway", ports.bus)
    return Service(
        name="gateway",
        ports=ports,
        handlers=HANDLERS,
        reads=READS,
        prepare=eventlog.read_ahead,
        commands={},
        loops=_loops(settings, ports, commands, watch),
        commands_on_leader_only=False,
        warning=lambda: watch.warning,
        on_lead=on_lead,
        app=create_app(parts),
        tasks=(live.run, authenticator.watch, refusals.run),
    )


def _authenticator(settings: GatewaySettings, ports: Ports) -> Authenticator:
    return Authenticator(
        ports.store,
        ports.clock,
        admin_token=settings.admin_token(),
        run_token_key=settings.run_token_key(),
        cache_seconds=settings.auth_cache_seconds,
        cache_max=settings.auth_cache_max,
    )


def _wrong_tokens(settings: GatewaySettings, clock: Clock) -> WrongTokens:
    return WrongTokens(
        clock, burst=settings.wrong_tokens_burst, each_second=settings.wrong_tokens_per_second
    )


def _loops(
    settings: GatewaySettings, ports: Ports, commands: Commands, watch: StreamWatch
) -> tuple[Loop, ...]:
    """What the leader does again and again beside projecting."""
    rebuild = Rebuild(ports.store, commands, settings.rebuild_tick_seconds)
    return (
        Loop(
            "housekeeping",
            Housekeeping(ports.store, settings).step,
            tick_seconds=settings.housekeeping_tick_seconds,
            exclusive=True,
            wake_on_commit=False,
        ),
        prune_loop("gateway", ports.store, settings, *old_rows(settings)),
        Loop(
            "rebuild",
            rebuild.step,
            tick_seconds=REBUILD_IDLE_SECONDS,
            wake_on_commit=False,
        ),
        Loop(
            "stream-watch",
            watch.step,
            tick_seconds=settings.stream_watch_seconds,
            wake_on_commit=False,
        ),
    )


WIRING = Wiring(
    name="gateway",
    settings=GatewaySettings,
    build=build,
    tables=TABLES,
    migrations=Path(__file__).parent / "migrations",
    hears=tuple(HANDLERS),
    asks=(
        m.CreateTask,
        m.CreateTasks,
        m.SetGoal,
        m.SetPriority,
        m.AckCheckpoint,
        m.SetSchedulable,
        m.SetNodeMarks,
        m.SetQuota,
        m.SetPolicy,
        m.ListPolicies,
        m.DryRunPolicy,
        m.Explain,
        m.Decisions,
        m.ReadLog,
        m.ListLogs,
        m.Reemit,
        m.ListDeadLetters,
        m.ReplayDeadLetters,
    ),
    listens=(m.LogChunk,),
    watches=True,
)
