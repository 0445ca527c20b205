"""Wires the monitor. Production, the all-in-one and the simulation call this same ``build``."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from libs.contracts.messages import (
    NodeSampled,
    ReadRecipients,
    ReadSteps,
    SetGoal,
    SetPriority,
    SetSchedulable,
)
from libs.service.definition import Ports, Service
from libs.service.loop import Loop
from libs.service.prune import prune_loop
from libs.service.wiring import Wiring
from services.monitor import activities as activity
from services.monitor.abnormal import store as abnormal
from services.monitor.abnormal.acting import Acting
from services.monitor.abnormal.evaluation import Evaluation
from services.monitor.abnormal.queries import AbnormalQueries
from services.monitor.abnormal.steps import Steps
from services.monitor.activities import Activities
from services.monitor.domain.newest import Newest
from services.monitor.event_copies import EventCopies
from services.monitor.export import COLLECTOR, Source
from services.monitor.handlers import HANDLERS, READS, Handlers
from services.monitor.messages.delivery import Delivery
from services.monitor.messages.mailing import Mailing
from services.monitor.messages.message_metrics import WaitingMessages
from services.monitor.messages.message_outbox import MessageOutbox
from services.monitor.messages.notifications import Commands
from services.monitor.messages.owners import Owners
from services.monitor.messages.recipients import Recipients
from services.monitor.messages.waiting import WaitingTasks
from services.monitor.series import store as series
from services.monitor.series.queries import Answers, Queries
from services.monitor.series.recorder import Bounds, Recorder
from services.monitor.settings import MonitorSettings
from services.monitor.store import prune_rules
from services.monitor.tables import TABLES


def build(settings: MonitorSettings, ports: Ports) -> Service:
    """The service, not running."""
    message_outbox = MessageOutbox(settings.waiting_messages_max, settings.mail_gather_seconds)
    recipients = Recipients(ports.bus, ports.store)
    mailing = Mailing(ports.store, ports.clock, settings, recipients)
    delivery = Delivery(ports.store, ports.clock, settings, message_outbox, mailing, recipients)
    messages = WaitingMessages(ports.store, settings.delivery_tick_seconds)
    waiting = WaitingTasks(ports.store, message_outbox, settings.waiting_seconds)
    recorder = _recorder(settings, ports)
    exported = Source(
        recorder.newest,
        ports.clock.now,
        gpus=settings.dcgm_metrics,
        tasks_max=settings.task_metrics_max,
    )

    evaluation, acting, findings = _abnormal(settings, ports, message_outbox)
    steps = evaluation.steps

    async def lead(epoch: int) -> None:
        evaluation.after = ""
        steps.lead()
        await recorder.lead(epoch)
        COLLECTOR.source = exported

    def lead_no_longer() -> None:
        delivery.stop()
        messages.clear()
        recorder.lead_no_longer()
        if COLLECTOR.source is exported:
            COLLECTOR.source = None

    answers = Answers(
        settings.series_points_max,
        settings.series_reply_points_max,
        settings.series_blocks_read_max,
    )
    return Service(
        name="monitor",
        ports=ports,
        handlers=Handlers(message_outbox).table(),
        reads=READS,
        commands={**Commands(settings, message_outbox).table(), **findings.commands()},
        queries={
            **Queries(ports.store, recorder, answers, ports.clock.now).table(),
            **findings.table(),
        },
        loops=(
            Loop("delivery", delivery.step, tick_seconds=settings.delivery_tick_seconds),
            Loop(
                "waiting",
                waiting.step,
                tick_seconds=settings.waiting_tick_seconds,
                exclusive=True,
                wake_on_commit=False,
            ),
            Owners(ports.store, recipients, settings.owners_tick_seconds).loop(),
            messages.loop(),
            *recorder.loops(),
            recorder.activities.loop(),
            steps.loop(),
            evaluation.loop(),
            acting.loop(),
            EventCopies(ports.bus).loop(),
            _pruning(settings, ports),
        ),
        warning=lambda: mailing.problem,
        on_lead=lead,
        on_lead_end=lead_no_longer,
        tasks=(delivery.run, recorder.listen),
    )


def _abnormal(
    settings: MonitorSettings, ports: Ports, message_outbox: MessageOutbox
) -> tuple[Evaluation, Acting, AbnormalQueries]:
    """What finds abnormal tasks, acts on them and lists them, by the site's rules."""
    book = settings.rule_book()
    tick_seconds = settings.rules_tick_seconds
    steps = Steps(ports.store, ports.bus, tick_seconds)
    evaluation = Evaluation(
        ports.store, message_outbox, book, settings.activity_limits(), tick_seconds, steps
    )
    acting = Acting(
        ports.store,
        ports.bus,
        book,
        settings.action_limits(),
        settings.rules_dry_run,
        min(5.0, tick_seconds),
        settings.activity_limits(),
        steps,
        settings.cordon_owners_min,
        # As for the activity of runs: what has no newer sample is not measured.
        2 * settings.series_write_seconds,
    )
    return evaluation, acting, AbnormalQueries(ports.store, book, settings.rules_dry_run)


def _pruning(settings: MonitorSettings, ports: Ports) -> Loop:
    """The loop that deletes old rows."""
    return prune_loop(
        "monitor",
        ports.store,
        settings,
        *prune_rules(
            timedelta(seconds=settings.ended_tasks_keep_seconds),
            timedelta(seconds=settings.messages_keep_seconds),
        ),
        series.prune_rule(),
        activity.prune_rule(timedelta(seconds=settings.ended_tasks_keep_seconds)),
        *abnormal.prune_rules(
            timedelta(seconds=settings.ended_tasks_keep_seconds),
            timedelta(seconds=settings.findings_keep_seconds),
        ),
    )


def _recorder(settings: MonitorSettings, ports: Ports) -> Recorder:
    """What takes samples, and computes how much of what runs hold they use."""
    activities = Activities(
        database=ports.store,
        now=ports.clock.now,
        limits=settings.activity_limits(),
        write_seconds=settings.series_write_seconds,
        publish_seconds=settings.activity_publish_seconds,
    )
    return Recorder(
        bus=ports.bus,
        database=ports.store,
        now=ports.clock.now,
        resolutions=settings.resolutions(),
        bounds=Bounds(
            settings.series_write_seconds,
            settings.series_rows_at_once,
            settings.series_blocks_max,
        ),
        newest=Newest(settings.newest_seconds),
        activities=activities,
    )


WIRING = Wiring(
    name="monitor",
    settings=MonitorSettings,
    build=build,
    tables=TABLES,
    migrations=Path(__file__).parent / "migrations",
    consumes=tuple(HANDLERS),
    requests=(ReadRecipients, ReadSteps, SetGoal, SetPriority, SetSchedulable),
    hears=(NodeSampled,),
    copies=True,
)
