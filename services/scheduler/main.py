"""Wires the scheduler. Production, the all-in-one and the simulation call this same ``build``."""

from __future__ import annotations

from pathlib import Path

from libs.contracts.messages import Explain, ExplainQuota, ListQueue, RunResumed, TaskSubmitted
from libs.service.definition import Ports, Service
from libs.service.loop import Loop
from libs.service.prune import prune_loop
from libs.service.traces import KeptTraces, trace_rule
from libs.service.wiring import Wiring
from services.scheduler.commands import Commands
from services.scheduler.domain.decide import decide
from services.scheduler.explaining import Explaining
from services.scheduler.handlers import HANDLERS, READS, handlers
from services.scheduler.loop import Brain
from services.scheduler.policy_commands import PolicyCommands, use_file
from services.scheduler.queue_listing import QueueListing
from services.scheduler.settings import SchedulerSettings
from services.scheduler.store import prune_rules
from services.scheduler.tables import TABLES


def build(settings: SchedulerSettings, ports: Ports) -> Service:
    """The service, not running."""
    policy = settings.policy()
    brain = Brain(ports, settings)
    commands = Commands(
        decisions_page_max=settings.decisions_page_max,
        reemit_tasks_max=settings.reemit_tasks_max,
        silent_seconds=settings.silent_ack_seconds_max,
    )
    explaining = Explaining(
        ports,
        brain,
        processes_max=settings.explain_processes_max,
        waiting_max=settings.explain_waiting_max,
        seconds_max=settings.explain_seconds_max,
    )
    listing = QueueListing(brain, ports.clock, page_max=settings.queue_page_max)
    of_file = {each.group: each for each in settings.policies()}
    policies = PolicyCommands(
        of_file=of_file,
        default_policy=policy.policy,
        document_bytes_max=settings.policy_document_bytes_max,
        effects_max=settings.dry_run_effects_max,
        page_max=settings.policies_page_max,
        dry_run_seconds_max=settings.dry_run_seconds_max,
        rows=ports.store,
        snapshot_with=brain.snapshot_with,
        decide=decide,
    )

    async def on_lead(epoch: int) -> None:
        """Load the working set, and apply the policy file."""
        await brain.lead(epoch)
        await use_file(ports.store, of_file, epoch)

    return Service(
        name="scheduler",
        ports=ports,
        handlers=handlers(policy),
        reads=READS,
        commands={**commands.table(), **policies.table()},
        queries={
            Explain: explaining.answer,
            ExplainQuota: explaining.quota,
            ListQueue: listing.page,
            **policies.queries(),
        },
        loops=(
            Loop("decide", brain.step, tick_seconds=settings.tick_seconds, exclusive=True),
            Loop(
                "learn",
                brain.learn,
                tick_seconds=settings.learn_tick_seconds,
                exclusive=True,
                wake_on_commit=False,
            ),
            prune_loop(
                "scheduler", ports.store, settings, *prune_rules(settings), trace_rule(settings)
            ),
        ),
        on_lead=on_lead,
        on_lead_end=brain.leadership_ended,
        warning=lambda: brain.apart.warning,
    )


WIRING = Wiring(
    name="scheduler",
    settings=SchedulerSettings,
    build=build,
    tables=TABLES,
    migrations=Path(__file__).parent / "migrations",
    consumes=tuple(HANDLERS),
    kept_traces=KeptTraces(
        continued_from=frozenset((TaskSubmitted,)), begun_with=frozenset((RunResumed,))
    ),
)
