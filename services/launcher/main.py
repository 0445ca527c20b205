"""Wires the launcher. Production, the all-in-one and the simulation call this same ``build``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

from libs.bus.sessions import SessionTimes
from libs.contracts.messages import (
    ExecInput,
    ListSecretForms,
    OpenExec,
    RunAssigned,
    RunResumed,
)
from libs.service.definition import Ports, Service
from libs.service.loop import Loop
from libs.service.prune import prune_loop
from libs.service.traces import KeptTraces, trace_rule
from libs.service.wiring import Wiring
from libs.signals.gpus import find_gpus
from services.launcher.domain.grace_periods import GracePeriods
from services.launcher.domain.inventory import LeasePolicy, QuarantinePolicy
from services.launcher.domain.master_ports import PortRange
from services.launcher.domain.rank_faults import PendingLimits
from services.launcher.domain.reconcile import Policy
from services.launcher.domain.start_delays import DelayPolicy
from services.launcher.exec_sessions import ExecLimits, ExecSessions
from services.launcher.handlers import HANDLERS, READS, Commands
from services.launcher.local_nodes import pids_max, plan_nodes
from services.launcher.loop import Launcher, Limits
from services.launcher.run_masks import RunMasks
from services.launcher.run_orders import Site
from services.launcher.run_secrets import RunSecrets
from services.launcher.run_traces import RunTraces
from services.launcher.runtimes.node_client import Machine
from services.launcher.runtimes.port import Runtime
from services.launcher.runtimes.process import ProcessRuntime
from services.launcher.runtimes.sample_port import SampledRuntime
from services.launcher.sampling import Sampling
from services.launcher.settings import LauncherSettings
from services.launcher.store import prune_rules
from services.launcher.tables import TABLES
from services.launcher.task_users import Choice, task_users


def build(settings: LauncherSettings, ports: Ports, *, runtime: Runtime | None = None) -> Service:
    """Build the service without running it. The simulation passes its own ``runtime``."""
    runtime = runtime or _RUNTIMES[settings.runtime](settings, ports)
    launcher = Launcher(
        store=ports.store,
        runtime=runtime,
        site=_site(settings),
        limits=_limits(settings),
        traces=RunTraces(ports.tracing),
    )
    commands = Commands(
        runtime=runtime.name,
        reemit_runs_max=settings.reemit_runs_max,
        masks=RunMasks(_site(settings)),
        network=launcher.network,
    )
    sessions = ExecSessions(
        ports.bus, ports.store, runtime, _exec_limits(settings), ports.clock.now
    )
    return Service(
        name="launcher",
        ports=ports,
        handlers=HANDLERS,
        reads=READS,
        commands=commands.table(),
        queries={
            OpenExec: sessions.open,
            ListSecretForms: RunSecrets(ports.store, _site(settings)).answer,
        },
        loops=(
            *launcher.loops(settings.look_tick_seconds, settings.reconcile_tick_seconds),
            prune_loop(
                "launcher",
                ports.store,
                settings,
                *prune_rules(
                    timedelta(seconds=settings.past_keep_seconds),
                    timedelta(seconds=settings.inbox_keep_seconds),
                    timedelta(seconds=settings.removed_node_keep_seconds),
                ),
                trace_rule(settings),
            ),
            *_sampling(settings, ports, runtime),
        ),
        on_lead=launcher.on_lead,
        on_lead_end=sessions.end_all,
        problem=lambda: launcher.problem,
        tasks=(launcher.hold, sessions.hold),
    )


def process_runtime(settings: LauncherSettings) -> ProcessRuntime:
    """This machine as a runtime. Raises ``ValueError`` if root runs it and no user
    for tasks is set."""
    machine = Machine(
        folder=settings.data_folder,
        users=task_users(_choice(settings), settings.data_folder),
        call_seconds=settings.supervisor_call_seconds,
        idle_seconds=settings.supervisor_idle_seconds,
        listing_seconds=settings.look_tick_seconds,
        keep_seconds=settings.output_keep_seconds,
        hung_seconds=settings.supervisor_hung_seconds,
        output_bytes_max=settings.output_bytes_max,
        pids_max=pids_max(settings),
    )
    # Virtual nodes have slots that stand for nothing real, so the driver is not queried.
    gpus = find_gpus().gpus if settings.virtual_nodes == 0 else ()
    return ProcessRuntime(machine, plan_nodes(settings, gpus))


def _sampling(settings: LauncherSettings, ports: Ports, runtime: Runtime) -> tuple[Loop, ...]:
    if settings.sample_seconds == 0 or not isinstance(runtime, SampledRuntime):
        return ()
    clock = ports.clock.now
    return (Sampling(ports.bus, ports.store, runtime, clock, settings.sample_seconds).loop(),)


def _exec_limits(settings: LauncherSettings) -> ExecLimits:
    times = SessionTimes(settings.exec_heartbeat_seconds, settings.exec_silence_seconds)
    return ExecLimits(sessions_max=settings.exec_sessions_max, times=times)


def _choice(settings: LauncherSettings) -> Choice:
    return Choice(settings.task_user, settings.task_users, settings.tasks_as_root)


def _kubernetes_runtime(settings: LauncherSettings, ports: Ports) -> Runtime:
    # Its client takes a hundred megabytes, which only this runtime needs.
    from services.launcher.runtimes.kubernetes.runtime import build_runtime  # noqa: PLC0415

    return build_runtime(settings, now=ports.clock.now)


_RUNTIMES: Mapping[str, Callable[[LauncherSettings, Ports], Runtime]] = {
    "process": lambda settings, _: process_runtime(settings),
    "kubernetes": _kubernetes_runtime,
}


def _site(settings: LauncherSettings) -> Site:
    if settings.runtime == "kubernetes":
        # The image determines the user and the paths of its programs.
        return Site(
            url=settings.task_url,
            token_key=settings.run_token_key(),
            path="",
            lang="",
            master_addr="",
            secret_env_patterns=settings.secret_env_patterns,
        )
    return Site(
        url=settings.task_url,
        token_key=settings.run_token_key(),
        path=settings.task_path,
        lang=settings.task_lang,
        master_addr=settings.master_addr,
        secret_env_patterns=settings.secret_env_patterns,
    )


def _limits(settings: LauncherSettings) -> Limits:
    return Limits(
        policy=Policy(
            exit_grace=timedelta(seconds=settings.exit_grace_seconds),
            pending_limits=PendingLimits(
                image_pull=timedelta(seconds=settings.image_pull_seconds),
                create=timedelta(seconds=settings.create_seconds),
            ),
            grace=GracePeriods(
                acked=settings.patience_acked_seconds,
                mates=settings.patience_mates_seconds,
                full=settings.patience_seconds,
            ),
        ),
        leases=LeasePolicy(
            lease=timedelta(seconds=settings.lease_seconds),
            fence=timedelta(seconds=settings.fence_seconds),
        ),
        ports=PortRange(settings.master_port_first, settings.master_port_last),
        actions_parallel_max=settings.actions_parallel_max,
        retry_first_seconds=settings.retry_first_seconds,
        retry_most_seconds=settings.retry_most_seconds,
        delays=DelayPolicy(
            first=timedelta(seconds=settings.delay_told_seconds),
            again=timedelta(seconds=settings.delay_told_seconds),
        ),
        quarantine=QuarantinePolicy(
            after=settings.quarantine_after_starts,
            seconds=settings.quarantine_seconds,
            seconds_max=settings.quarantine_seconds_max,
        ),
    )


WIRING = Wiring(
    name="launcher",
    settings=LauncherSettings,
    build=build,
    tables=TABLES,
    migrations=Path(__file__).with_name("migrations"),
    consumes=tuple(HANDLERS),
    kept_traces=KeptTraces(continued_from=frozenset((RunAssigned, RunResumed))),
    hears=(ExecInput,),
)
