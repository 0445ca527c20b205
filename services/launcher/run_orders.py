"""Builds the orders of a run's ranks (command, environment, context file) from its row alone.
Called by ``loop.py`` before a launch; pure.

Nothing else reaches a task: no credential and no variable of the platform.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from libs.contracts.messages import Checkpoint, Placement, Role
from libs.contracts.port_names import port_variable
from libs.contracts.rank_sizes import limits_of, size_of
from libs.contracts.run_token import make_run_token
from services.launcher.contracts import renderer
from services.launcher.domain import rank_restarts
from services.launcher.domain.model import Run
from services.launcher.hosts import Host
from services.launcher.role_overrides import argv_of, role_of_attempt
from services.launcher.runtimes.port import RankOrder, RunOrder

# A task's own variables override these, with an empty value too. Unbuffered, because output that
# Python holds back would arrive minutes late, and never if the process is killed.
DEFAULTS = {"PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, slots=True)
class Site:
    """The site's values in a task's environment."""

    # The gateway as the tasks reach it.
    url: str
    token_key: bytes = field(repr=False)
    # If one of these two is empty, the task keeps the value of its image.
    path: str
    lang: str
    # The address of ranks that share this machine's network.
    master_addr: str


def build_order(
    run: Run, hosts: Sequence[Host], site: Site, starting: Iterable[int] | None = None
) -> RunOrder:
    """Build the orders for every rank of a run. ``hosts`` are its ranks, in the order of their
    placements; ``starting`` are the ranks to start, all if it is None."""
    assert run.spec is not None, "an assigned run has its specification"
    roles = {role.name: role for role in run.spec.roles}
    token = make_run_token(site.token_key, run.id)
    given = {"PATH": site.path, "LANG": site.lang}
    defaults = {**DEFAULTS, **{name: value for name, value in given.items() if value}}
    shared = _platform_variables(run, site, token)
    render = renderer(run.spec.contract, hosts)
    starts = rank_restarts.counts(run)
    return RunOrder(
        run_id=run.id,
        ranks=tuple(
            RankOrder(
                rank=place.rank,
                node_id=place.node_id,
                argv=argv_of(role),
                of_image=bool(role.args) and not role.command,
                env={
                    **defaults,
                    **run.spec.env,
                    **role.env,
                    **rendered.env,
                    **shared,
                    **_rank_variables(place),
                    **_port_variables(host),
                    **_restart_variables(role, start),
                },
                gpus=place.gpus,
                cwd=role.working_directory or run.spec.working_directory,
                context=json.dumps(_context(run, place, site, token)),
                cpus=limits.cpus,
                memory_bytes=limits.memory_bytes,
                cpus_request=size.cpus or None,
                memory_request_bytes=size.memory_bytes or None,
                role=place.role,
                files=rendered.files,
                paths=rendered.paths,
                ports=host.ports,
                start=start,
                notice=_restart_notice(role, start),
                ready=role.ready if role.ready is not None and role.ready.port else None,
            )
            for place, host in zip(run.placements, hosts, strict=True)
            for role in (role_of_attempt(roles.get(place.role) or Role(), run.attempt),)
            for size, limits in ((size_of(run.spec, role), limits_of(run.spec, role)),)
            for rendered in (render(host),)
            for start in (starts.get(place.rank, 0),)
        ),
        owner=run.owner,
        team=run.team,
        spec=run.spec,
        ports=tuple(sorted({host.port for host in hosts if host.port})),
        starting=None if starting is None else frozenset(starting),
    )


def _platform_variables(run: Run, site: Site, token: str) -> Mapping[str, str]:
    """The variables that are the same for every rank of the run."""
    assert run.spec is not None, "an assigned run has its specification"
    fence = run.spec.fence_after_seconds
    return {
        "SHIFTWORK_TASK": run.task_id,
        "SHIFTWORK_ATTEMPT": str(run.attempt),
        "SHIFTWORK_WORLD_SIZE": str(len(run.placements)),
        # A replica is one process of the platform, also beside others on its node.
        "SHIFTWORK_LOCAL_RANK": "0",
        "SHIFTWORK_RESUME_FROM": json.dumps(_saved(run.resume_from)) if run.resume_from else "",
        "SHIFTWORK_URL": site.url,
        "SHIFTWORK_RUN_TOKEN": token,
        **({"SHIFTWORK_FENCE_AFTER_SECONDS": str(fence)} if fence is not None else {}),
    }


def _rank_variables(place: Placement) -> Mapping[str, str]:
    return {
        "SHIFTWORK_NODE": place.node_id,
        "SHIFTWORK_GPUS": ",".join(str(gpu) for gpu in place.gpus),
        "SHIFTWORK_RANK": str(place.rank),
        "SHIFTWORK_ROLE": place.role,
    }


def _restart_notice(role: Role, start: int) -> str:
    return f"restarted ({start} of {rank_restarts.restarts_max(role)})" if start else ""


def _restart_variables(role: Role, start: int) -> Mapping[str, str]:
    return {"SHIFTWORK_RESTARTS": str(start)} if rank_restarts.restarts_in_place(role) else {}


def _port_variables(host: Host) -> Mapping[str, str]:
    return {port_variable(name): str(port) for name, port in host.ports.items()}


def _context(run: Run, place: Placement, site: Site, token: str) -> Mapping[str, object]:
    """The content of the context file: the variables' values, and values with several parts."""
    assert run.spec is not None, "an assigned run has its specification"
    return {
        "task": run.task_id,
        "attempt": run.attempt,
        "node": place.node_id,
        "gpus": list(place.gpus),
        "rank": place.rank,
        "world_size": len(run.placements),
        "local_rank": 0,
        "role": place.role,
        "url": site.url,
        "run_token": token,
        "resume_from": _saved(run.resume_from) if run.resume_from else None,
        "ack_deadline_seconds": run.spec.preemption.ack_deadline_seconds,
        "fence_after_seconds": run.spec.fence_after_seconds,
    }


def _saved(checkpoint: Checkpoint) -> Mapping[str, object]:
    """A checkpoint as the SDK reads it."""
    return {
        "no": checkpoint.no,
        "step": checkpoint.step,
        "uri": checkpoint.uri,
        "digest": checkpoint.digest,
        "attempt": checkpoint.attempt,
        # Only of another task: what a program sees of its own checkpoints stays as it was.
        **({"task": checkpoint.task_id} if checkpoint.task_id else {}),
    }
