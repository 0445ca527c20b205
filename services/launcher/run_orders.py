"""Builds the orders of a run's ranks (command, environment, context file) from its row alone.
Called by ``loop.py`` before a launch; pure.

Nothing else reaches a task: no credential and no variable of the platform.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from libs.contracts.ids import RunId
from libs.contracts.messages import Checkpoint, Placement, Role, TaskSpec
from libs.contracts.port_names import port_variable
from libs.contracts.rank_sizes import limits_of, size_of
from libs.contracts.run_token import make_run_token
from libs.contracts.variables import RUN_TOKEN
from services.launcher.contracts import renderer
from services.launcher.domain import rank_restarts
from services.launcher.domain.model import Run
from services.launcher.hosts import Host
from services.launcher.role_overrides import argv_of, role_of_attempt
from services.launcher.run_traces import VARIABLE as TRACEPARENT
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
    # Variables of tasks with such names are secrets, in upper or lower case.
    secret_env_patterns: tuple[str, ...] = ()


def build_order(
    run: Run,
    hosts: Sequence[Host],
    site: Site,
    starting: Container[int] | None = None,
    *,
    traceparent: str = "",
) -> RunOrder:
    """Build the orders for the ranks of a run that start. ``hosts`` are all of its ranks, in the
    order of their placements; ``starting`` are the ranks to start, all if it is None. With a
    ``traceparent`` the task's own spans can hang below that of the run."""
    assert run.spec is not None, "an assigned run has its specification"
    build = _RankBuilder(run, hosts, site, traceparent)
    places = tuple(zip(run.placements, hosts, strict=True))

    def gang() -> tuple[RankOrder, ...]:
        return tuple(build(place, host) for place, host in places)

    return RunOrder(
        run_id=run.id,
        ranks=gang()
        if starting is None
        else tuple(build(place, host) for place, host in places if place.rank in starting),
        owner=run.owner,
        team=run.team,
        spec=run.spec,
        ports=tuple(sorted({host.port for host in hosts if host.port})),
        world_size=len(places),
        build_gang=None if starting is None else gang,
        image_roles=tuple(
            role.name for role in build.roles.values() if role.args and not role.command
        ),
    )


class _RankBuilder:
    """Builds the order of one rank after the other; what all have in common is made once."""

    def __init__(self, run: Run, hosts: Sequence[Host], site: Site, traceparent: str) -> None:
        assert run.spec is not None, "an assigned run has its specification"
        self._run, self._spec, self._site = run, run.spec, site
        self.roles = {
            each.name: role_of_attempt(each, run.spec, run.attempt) for each in run.spec.roles
        }
        self._token = make_run_token(site.token_key, run.id)
        given = {"PATH": site.path, "LANG": site.lang, TRACEPARENT: traceparent}
        self._defaults = {**DEFAULTS, **{name: value for name, value in given.items() if value}}
        self._shared = _platform_variables(run, site, self._token)
        self._render = renderer(run.spec.contract, hosts)
        self._starts = rank_restarts.counts(run)

    def __call__(self, place: Placement, host: Host) -> RankOrder:
        spec = self._spec
        role = self.roles.get(place.role) or Role()
        size, limits = size_of(spec, role), limits_of(spec, role)
        rendered, start = self._render(host), self._starts.get(place.rank, 0)
        return RankOrder(
            rank=place.rank,
            node_id=place.node_id,
            argv=argv_of(role),
            of_image=bool(role.args) and not role.command,
            env={
                **self._defaults,
                **spec.env,
                **role.env,
                **rendered.env,
                **self._shared,
                **_rank_variables(place),
                **_port_variables(host),
                **_restart_variables(role, start),
            },
            gpus=place.gpus,
            cwd=role.working_directory or spec.working_directory,
            context=json.dumps(_context(self._run, place, self._site, self._token)),
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
            secrets=(RUN_TOKEN, *_secrets(spec, {**spec.env, **role.env}, self._site)),
        )


def secret_values(spec: TaskSpec, run_id: RunId, site: Site) -> Iterator[str]:
    """The values of the secrets of all ranks of a run."""
    yield make_run_token(site.token_key, run_id)
    for role in spec.roles:
        own = role_of_attempt(role, spec, run_id.attempt).env
        # A role's own value hides the task's from its ranks, not from others.
        for env in (spec.env, own):
            yield from (env[name] for name in _secrets(spec, env, site))


def _secrets(spec: TaskSpec, env: Iterable[str], site: Site) -> Iterator[str]:
    """Which of the task's own variables are secrets: those that it declares, and those whose names
    are of a secret by the site's patterns."""
    declared = frozenset(spec.secret_env)
    patterns = [each.upper() for each in site.secret_env_patterns]
    for name in env:
        if name in declared or any(fnmatchcase(name.upper(), each) for each in patterns):
            yield name


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
        RUN_TOKEN: token,
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
