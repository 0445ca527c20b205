"""Wiring: the gateway's parts from settings and ports. The only place that constructs adapters."""

from __future__ import annotations

import secrets
from pathlib import Path

import structlog

from libs.contracts import messages as m
from libs.service.clock import Clock
from libs.service.definition import Ports, Service
from libs.service.loop import Loop
from libs.service.prune import prune_loop
from libs.service.stream_watch import StreamWatch
from libs.service.wiring import Wiring
from libs.store.port import Tx
from services.gateway import eventlog
from services.gateway.api.app import create_app
from services.gateway.api.deps import Context
from services.gateway.auth import Authenticator, ensure_first_admin
from services.gateway.capacity import Capacity
from services.gateway.command_client import Commands
from services.gateway.concurrency import ConcurrencyLimit
from services.gateway.disabled_users import DisabledUsers
from services.gateway.event_stream import LiveEvents, StreamLimit
from services.gateway.handlers import HANDLERS, READS
from services.gateway.hints import Hints
from services.gateway.ids import Mint, sortable_id
from services.gateway.large_bodies import LargeBodies
from services.gateway.listeners import Listeners
from services.gateway.maintenance import HistoryPruning, ReadModelRebuild
from services.gateway.oidc import Provider
from services.gateway.passwords import Passwords
from services.gateway.queue_cursors import QueueCursors
from services.gateway.rate_limits import RateLimits
from services.gateway.recipients import Recipients
from services.gateway.rejected_requests import RejectionAudit
from services.gateway.reported_steps import ReportedSteps
from services.gateway.rows import EventHeadRow
from services.gateway.settings import GatewaySettings
from services.gateway.store import head, prune_rules
from services.gateway.tables import TABLES

TOKEN_PREFIX = "swt_"  # noqa: S105 - what a token begins with is no secret
TOKEN_BYTES = 32
ID_RANDOM_BYTES = 4
REBUILD_IDLE_SECONDS = 3600.0
# Of the events without an owner, so many are read as a term begins.
EVENTS_CLAIMED_MAX = 10_000
_log = structlog.stdlib.get_logger(__name__)


def minting(clock: Clock) -> Mint:
    """Secrets from the operating system; ids that sort by time."""

    def new_id() -> str:
        return sortable_id(clock.now(), secrets.token_bytes(ID_RANDOM_BYTES))

    return Mint(
        secret=lambda: TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES),
        id=new_id,
    )


def build(settings: GatewaySettings, ports: Ports, mint: Mint | None = None) -> Service:
    """The gateway, wired but not running."""
    _warn_of_proxy(settings)
    live = _live(settings, ports)
    ports.store.observe(live.observe)
    commands = _commands(settings, ports)
    authenticator = _authenticator(settings, ports)
    made = mint or minting(ports.clock)
    rejections = _rejections(settings, ports, made)
    parts = Context(
        settings=settings,
        store=ports.store,
        clock=ports.clock,
        bus=ports.bus,
        commands=commands,
        authenticator=authenticator,
        live=live,
        streams=_streams(settings),
        waits=StreamLimit(settings.waits_max, settings.waits_per_task_max),
        exec_sessions=_exec_sessions(settings),
        mint=made,
        wrong_tokens=_rates(settings, ports, "wrong_tokens"),
        checkpoints=_rates(settings, ports, "checkpoints"),
        run_writes=_rates(settings, ports, "run_writes"),
        state_reads=_rates(settings, ports, "state_reads"),
        requests=_rates(settings, ports, "requests"),
        run_requests=_rates(settings, ports, "run_requests"),
        large_bodies=_large_bodies(settings),
        usage_questions=_questions(settings, "usage"),
        queue_questions=_questions(settings, "queue"),
        queue_cursors=_queue_cursors(settings),
        log_questions=_questions(settings, "log"),
        dry_runs=_rates(settings, ports, "dry_runs"),
        capacity=Capacity(ports.store, ports.clock),
        rejections=rejections,
        listeners=Listeners(ports.store),
        logins=_rates(settings, ports, "logins"),
        oidc=Provider(settings, ports.clock) if settings.oidc_issuer else None,
        passwords=Passwords(settings, ports.clock),
    )

    async def on_lead(epoch: int) -> None:
        """The event log's end is read at every event: keep it in memory. What followed the commits
        of an earlier term is not trusted: that term may have ended because it could not follow."""
        live.reread_tables()
        authenticator.forget()
        await ports.store.make_resident(EventHeadRow)
        async with ports.store.transaction(epoch=epoch) as tx:
            await _begin_term(tx, hints)

    watch = StreamWatch("gateway", ports.bus)
    hints = Hints(ports, settings.hint_gap_seconds, live, authenticator.forget)
    return Service(
        name="gateway",
        ports=ports,
        handlers=HANDLERS,
        reads=READS,
        prepare=eventlog.read_ahead,
        commands={},
        queries={
            m.ReadRecipients: Recipients(ports.store, settings.visibility).read,
            m.ReadSteps: ReportedSteps(ports.store).read,
        },
        loops=_loops(settings, ports, commands, watch),
        commands_on_leader_only=False,
        warning=lambda: watch.warning,
        on_lead=on_lead,
        app=create_app(parts),
        tasks=(live.run, authenticator.watch, authenticator.record_uses, rejections.run, hints.run),
    )


def _commands(settings: GatewaySettings, ports: Ports) -> Commands:
    return Commands(
        ports.bus,
        timeout_seconds=settings.command_timeout_seconds,
        retry_after_seconds=settings.retry_after_seconds,
    )


async def _begin_term(tx: Tx, hints: Hints) -> None:
    hints.lead((await head(tx)).position)
    await ensure_first_admin(tx)
    await eventlog.claim_all(tx, EVENTS_CLAIMED_MAX)


def _queue_cursors(settings: GatewaySettings) -> QueueCursors:
    """Sealed with a key that all processes derive; without one, cursors end with the process."""
    return QueueCursors(settings.queue_cursor_key() or secrets.token_bytes(32))


def _warn_of_proxy(settings: GatewaySettings) -> None:
    """TLS ends at a proxy, because this process has none: it is to be named."""
    if settings.public_url.startswith("https:") and not settings.http_trusted_proxies:
        _log.warning(
            "everybody has the proxy's address: delays and limits by address hold all people at"
            " once; set SHIFTWORK_GATEWAY_HTTP_TRUSTED_PROXIES",
            public_url=settings.public_url,
        )


def _rates(settings: GatewaySettings, ports: Ports, name: str) -> RateLimits:
    """The rate whose numbers are the settings ``NAME_burst`` and ``NAME_per_second``."""
    burst: int = getattr(settings, f"{name}_burst")
    per_second: float = getattr(settings, f"{name}_per_second")
    return RateLimits(ports.clock, burst=burst, per_second=per_second)


def _questions(settings: GatewaySettings, name: str) -> ConcurrencyLimit:
    """The limit whose numbers are the settings ``NAME_questions_max`` and its ``per_user_max``."""
    total: int = getattr(settings, f"{name}_questions_max")
    each: int = getattr(settings, f"{name}_questions_per_user_max")
    return ConcurrencyLimit(total, each)


def _rejections(settings: GatewaySettings, ports: Ports, mint: Mint) -> RejectionAudit:
    entries = _rates(settings, ports, "refusal_entries")
    return RejectionAudit(ports.store, mint.id, entries, settings.refusals_seconds)


def _large_bodies(settings: GatewaySettings) -> LargeBodies:
    return LargeBodies(settings.large_bodies_per_caller_max, settings.large_bodies_parsed_max)


def _streams(settings: GatewaySettings) -> StreamLimit:
    each_max = settings.streams_per_user_max
    return StreamLimit(settings.streams_max, each_max, settings.streams_reserved)


def _exec_sessions(settings: GatewaySettings) -> StreamLimit:
    each_max = settings.exec_sessions_per_user_max
    return StreamLimit(settings.exec_sessions_max, each_max, what="sessions")


def _live(settings: GatewaySettings, ports: Ports) -> LiveEvents:
    return LiveEvents(
        ports.store,
        pending_max=settings.stream_pending_max,
        page=settings.stream_page,
        catching_up=ConcurrencyLimit(settings.catch_ups_max, settings.catch_ups_per_user_max),
        poll_seconds=settings.poll_seconds,
        poll_leading_seconds=settings.poll_leading_seconds,
    )


def _authenticator(settings: GatewaySettings, ports: Ports) -> Authenticator:
    return Authenticator(
        ports.store,
        ports.clock,
        admin_token=settings.admin_token(),
        run_token_key=settings.run_token_key(),
        cache_seconds=settings.auth_cache_seconds,
        cache_max=settings.auth_cache_max,
        lookups=ConcurrencyLimit(settings.lookups_max, settings.lookups_per_address_max),
        lookups_waiting_max=settings.lookups_waiting_max,
        uses_seconds=settings.token_uses_seconds,
        session_idle_seconds=settings.session_idle_seconds,
        visibility=settings.visibility,
    )


def _loops(
    settings: GatewaySettings, ports: Ports, commands: Commands, watch: StreamWatch
) -> tuple[Loop, ...]:
    """What the leader does again and again beside projecting."""
    disabled = DisabledUsers(ports.store, commands)
    rebuild = ReadModelRebuild(ports.store, commands, settings.rebuild_tick_seconds)
    return (
        Loop(
            "housekeeping",
            HistoryPruning(ports.store, settings).step,
            tick_seconds=settings.prune_tick_seconds,
            exclusive=True,
            wake_on_commit=False,
        ),
        prune_loop("gateway", ports.store, settings, *prune_rules(settings)),
        Loop(
            "disabled-users",
            disabled.step,
            tick_seconds=settings.disabled_tick_seconds,
            wake_on_commit=False,
        ),
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
    consumes=tuple(HANDLERS),
    requests=(
        m.CreateTask,
        m.CreateTasks,
        m.SetGoal,
        m.SetMode,
        m.SetPriority,
        m.AckCheckpoint,
        m.ReportReady,
        m.YieldRun,
        m.SetLifeState,
        m.GetLifeState,
        m.PrepareContinuation,
        m.SetSchedulable,
        m.SetNodeMarks,
        m.SetQuota,
        m.SetNotification,
        m.RemoveNotification,
        m.ListNotifications,
        m.ListUndeliveredMessages,
        m.ReplayUndeliveredMessages,
        m.SetPolicy,
        m.ListPolicies,
        m.DryRunPolicy,
        m.Explain,
        m.ExplainQuota,
        m.ListQueue,
        m.Decisions,
        m.ReadLog,
        m.ReadLogLines,
        m.ListLogs,
        m.ReadSeries,
        m.ReadUtilization,
        m.ListAbnormalTasks,
        m.ListAbnormalRules,
        m.Reemit,
        m.ListDeadLetters,
        m.ReplayDeadLetters,
        m.DiscardDeadLetters,
        m.OpenExec,
    ),
    follows=(m.LogChunk,),
    hears=(m.ExecOutput,),
    watches=True,
)
