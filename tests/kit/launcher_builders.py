"""Values for the launcher's tests, with everything that does not matter filled in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from libs.contracts.ids import RunId, TaskId
from libs.contracts.messages import (
    Checkpoint,
    KillRequested,
    Node,
    Placement,
    PreemptionPolicy,
    PreemptionRequested,
    PreemptMode,
    Reason,
    ReasonCode,
    RetryPolicy,
    Role,
    RunAssigned,
    TaskSpec,
)
from services.launcher.domain.model import (
    Listing,
    ObservedNode,
    ObservedRank,
    ObservedRun,
    RankState,
    ReadyReport,
    Run,
    RunState,
)
from services.launcher.domain.reconcile import Policy, Scan
from services.launcher.domain.worklist import Outcome, Worklist
from services.launcher.runtimes.node_client import Machine
from services.launcher.runtimes.port import RankOrder, RunOrder
from services.launcher.settings import LauncherSettings
from tests.kit.clock import START, at


def a_machine(folder: Path, **changes: Any) -> Machine:
    """A runtime's place with the launcher's own numbers."""
    names = {
        "call_seconds": "supervisor_call_seconds",
        "listing_seconds": "look_tick_seconds",
        "idle_seconds": "supervisor_idle_seconds",
        "keep_seconds": "output_keep_seconds",
        "hung_seconds": "supervisor_hung_seconds",
        "output_bytes_max": "output_bytes_max",
        "pids_max": "pids_max",
    }
    fields = LauncherSettings.model_fields
    numbers = {name: fields[setting].default for name, setting in names.items()}
    return Machine(folder, **{**numbers, **changes})


KEY = b"k" * 32


def run_id(task: str = "task", attempt: int = 1) -> RunId:
    return RunId(TaskId(task), attempt)


def a_spec(
    ranks: int = 1,
    *,
    mode: PreemptMode = PreemptMode.SDK,
    signal: str = "",
    command: Sequence[str] = ("python", "train.py"),
    **more: Any,
) -> TaskSpec:
    return TaskSpec(
        name="spec",
        group="default",
        roles=(Role(name="worker", replicas=ranks, command=tuple(command)),),
        retry=RetryPolicy(),
        preemption=PreemptionPolicy(mode=mode, signal=signal, ack_deadline_seconds=60),
        nodes=ranks,
        **more,
    )


def placements(ranks: int, gpus: tuple[int, ...] = (0,)) -> tuple[Placement, ...]:
    return tuple(
        Placement(rank=rank, role="worker", role_index=rank, node_id=f"local-{rank}", gpus=gpus)
        for rank in range(ranks)
    )


def a_run(
    state: RunState = RunState.RUNNING, *, ranks: int = 1, spec: TaskSpec | None = None, **more: Any
) -> Run:
    run = Run(
        "task",
        1,
        state,
        spec=spec or a_spec(ranks),
        placements=placements(ranks),
        started_at=START if state is RunState.RUNNING else None,
    )
    return replace(run, **more)


def observed(rank: int = 0, state: RankState = RankState.RUNNING, **more: Any) -> ObservedRank:
    over = {} if state is RankState.RUNNING else {"exited_at": at(5)}
    return ObservedRank(rank, f"local-{rank}", state, **{"started_at": START, **over, **more})


def pending(rank: int = 0, **more: Any) -> ObservedRank:
    return ObservedRank(rank, f"local-{rank}", RankState.PENDING, **more)


def exited(
    rank: int = 0, code: int | None = 0, signal: int | None = None, *, seconds: float = 5
) -> ObservedRank:
    return observed(rank, RankState.EXITED, code=code, signal=signal, exited_at=at(seconds))


def lost(rank: int = 0) -> ObservedRank:
    return observed(rank, RankState.LOST)


def a_listing(
    ranks: Mapping[RunId, Sequence[ObservedRank]] | None = None,
    *,
    nodes: int = 4,
    silent: Sequence[str] = (),
) -> Listing:
    return Listing(
        {
            f"local-{n}": ObservedNode(a_node(f"local-{n}", ready=f"local-{n}" not in silent))
            for n in range(nodes)
        },
        {
            run: ObservedRun(
                run, {rank.rank: rank for rank in found}, frozenset(r.node_id for r in found)
            )
            for run, found in (ranks or {}).items()
        },
    )


def a_node(node_id: str = "local-0", *, ready: bool = True) -> Node:
    return Node(id=node_id, group="default", gpus=2, schedulable=True, ready=ready)


def an_assignment(
    attempt: int = 1,
    *,
    task: str = "task",
    spec: TaskSpec | None = None,
    ranks: int = 1,
    resume_from: Checkpoint | None = None,
) -> RunAssigned:
    return RunAssigned(
        task_id=task,
        attempt=attempt,
        owner="ada",
        spec=spec or a_spec(ranks),
        placements=placements(ranks),
        start_deadline_at=at(60),
        resume_from=resume_from,
        assigned_at=START,
    )


def a_preemption(attempt: int = 1, task: str = "task") -> PreemptionRequested:
    return PreemptionRequested(
        task_id=task, attempt=attempt, reason=Reason(), requested_at=START, deadline_at=at(60)
    )


def a_kill(
    attempt: int = 1, task: str = "task", code: ReasonCode = ReasonCode.UNSPECIFIED
) -> KillRequested:
    return KillRequested(
        task_id=task, attempt=attempt, reason=Reason(code=code), requested_at=START
    )


def a_checkpoint(no: int = 1, *, attempt: int = 1, step: int = 10, uri: str = "/c") -> Checkpoint:
    return Checkpoint(no=no, attempt=attempt, step=step, uri=uri, digest="", saved_at=START)


def an_order(
    run: RunId,
    argv: Sequence[str],
    *,
    ranks: int = 1,
    env: Mapping[str, str] | None = None,
    **more: Any,
) -> RunOrder:
    return RunOrder(
        run,
        tuple(
            RankOrder(
                rank=rank,
                node_id=f"local-{rank}",
                argv=tuple(argv),
                env={"PATH": "/usr/local/bin:/usr/bin:/bin", **(env or {})},
                gpus=(0,),
                **{"cwd": "", "context": "{}", **more},
            )
            for rank in range(ranks)
        ),
    )


def reconcile(
    runs: Iterable[Run],
    scan: Scan,
    now: datetime,
    policy: Policy,
    *,
    reports: Iterable[ReadyReport] = (),
    new_leader: bool = False,
) -> Outcome:
    """One round of a launcher with these rows. ``new_leader``: it has observed none of them."""
    work = Worklist(runs, reports=reports)
    if not new_leader:
        work.observed.update(work.runs)
    work.update_scan(scan)
    return work.step(work.take_dirty(), scan, now, policy)
