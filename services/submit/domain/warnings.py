"""Warns of what a task may have but what has no effect here, or will probably surprise.

Called by ``handlers.py`` for a task that is accepted. ``RULES`` is the only list of warnings:
``docs/generated/warnings.md`` is rendered from it. A rule that needs a fact which is not known
finds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, cast

from libs.contracts.messages import Contract, PreemptMode, Role, TaskSpec, TaskWarning
from libs.contracts.rank_sizes import REQUESTS, has_own_size, limits_of, size_of
from libs.contracts.task_contracts import contract_of
from libs.contracts.wording import as_text, cut
from services.submit.domain.facts import Facts
from services.submit.domain.fit import check_inventory

WARNINGS_MAX = 20
MESSAGE_CHARACTERS_MAX = 300
# Fields of a pod request whose values may be secrets or long: their names are shown alone.
_NOT_SHOWN = frozenset({"template", "env_from"})
# Names by which people usually mean the rank that the others find.
_FIRST_RANKS = ("chief", "coordinator", "driver", "launcher", "leader", "main", "master")


@dataclass(frozen=True, slots=True)
class Case:
    """One task and what is known about where it would run."""

    # With its defaults, and as it was requested.
    spec: TaskSpec
    asked: TaskSpec
    facts: Facts


class Found(NamedTuple):
    """One place that a rule is about, and names for its message."""

    field: str
    value: object = ""
    names: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class Rule:
    """One warning: its condition, for the documentation and as a function, and its message."""

    code: str
    fields: str
    when: str
    message: str
    find: Callable[[Case], Iterable[Found]] = field(repr=False)


def find_warnings(spec: TaskSpec, asked: TaskSpec, facts: Facts) -> tuple[TaskWarning, ...]:
    """The first warnings about a valid task, at most ``WARNINGS_MAX``, in the order of the rules.

    ``spec`` has its defaults, ``asked`` is the task as it was requested.
    """
    case = Case(spec, asked, facts)
    every = (_warning(rule, found) for rule in RULES for found in rule.find(case))
    return tuple(islice(every, WARNINGS_MAX))


def _warning(rule: Rule, found: Found) -> TaskWarning:
    message = rule.message.format(**found.names)
    return TaskWarning(
        code=rule.code,
        field=cut(found.field, MESSAGE_CHARACTERS_MAX),
        value=cut(as_text(found.value)),
        message=cut(message, MESSAGE_CHARACTERS_MAX),
    )


def _roles(case: Case) -> Iterator[tuple[str, Role]]:
    for index, role in enumerate(case.spec.roles):
        yield f"roles[{index}]", role


def _pods_only(case: Case) -> Iterator[Found]:
    if case.facts.has_pods is not False:
        return
    names = {"group": case.spec.group}
    requests = [("pod", case.spec.pod), *((f"{at}.pod", role.pod) for at, role in _roles(case))]
    for at, role in _roles(case):
        if role.image:
            yield Found(f"{at}.image", role.image, names)
    for at, request in requests:
        for name in type(request).model_fields if request else ():
            value = getattr(request, name)
            if value:
                yield Found(f"{at}.{name}", _shown(name, value), names)


def _shown(name: str, value: object) -> object:
    if name in _NOT_SHOWN:
        return ""
    if isinstance(value, (tuple, dict)):
        return ", ".join(map(str, cast("Iterable[object]", value)))
    return value


def _limits_not_enforced(case: Case) -> Iterator[Found]:
    if not case.facts.limits_not_enforced:
        return
    for name in REQUESTS:
        given = getattr(case.spec, name)
        if given is not None:
            yield Found(name, given, {"group": case.spec.group})
        for at, role in _roles(case):
            own = getattr(role, name)
            if own is not None:
                yield Found(f"{at}.{name}", own, {"group": case.spec.group})


def _limit_above_nodes(case: Case) -> Iterator[Found]:
    nodes = [each for each in case.facts.shapes if each.group == case.spec.group and each.nodes > 0]
    if not case.facts.inventory_known or not nodes or case.spec.wait_for_nodes:
        return
    for name in REQUESTS:
        most = max(getattr(each, name) for each in nodes)
        if not all(getattr(each, name) for each in nodes):
            continue
        for index, role in enumerate(case.spec.roles):
            limit = getattr(limits_of(case.spec, role), name)
            if limit is not None and limit > most:
                own = getattr(role, name) is not None
                at = f"roles[{index}].{name}" if own else name
                yield Found(at, limit, {"most": as_text(most)})
                if not own:
                    break


def _leased_port(case: Case) -> Iterator[Found]:
    if case.facts.has_pods is not False:
        return
    for at, role in _roles(case):
        for index, port in enumerate(role.ports):
            if port.port is not None:
                variable = "SHIFTWORK_PORT_" + port.name.upper().replace("-", "_")
                yield Found(f"{at}.ports[{index}].port", port.port, {"variable": variable})


def _role_unknown_to_contract(case: Case) -> Iterator[Found]:
    contract = contract_of(case.spec.contract)
    if not contract.needs:
        return
    for at, role in _roles(case):
        if role.name not in contract.needs:
            names = {"contract": contract.word, "known": " and ".join(contract.needs)}
            yield Found(f"{at}.name", role.name, names)


def _not_rank_0(case: Case) -> Iterator[Found]:
    if contract_of(case.spec.contract).name not in (Contract.TORCH, Contract.COORDINATOR):
        return
    for at, role in list(_roles(case))[1:]:
        if role.name in _FIRST_RANKS:
            word = contract_of(case.spec.contract).word
            names = {"first": case.spec.roles[0].name, "contract": word}
            yield Found(f"{at}.name", role.name, names)


def _fence_without_sdk(case: Case) -> Iterator[Found]:
    seconds, mode = case.spec.fence_after_seconds, case.spec.preemption.mode
    if seconds is not None and mode is not PreemptMode.SDK:
        yield Found("fence_after_seconds", seconds, {"mode": mode.name.lower()})


def _deadline_of_kill(case: Case) -> Iterator[Found]:
    seconds = case.asked.preemption.ack_deadline_seconds
    if seconds and case.spec.preemption.mode is PreemptMode.KILL:
        yield Found("preemption.ack_deadline_seconds", seconds)


def _deadline_beyond_run(case: Case) -> Iterator[Found]:
    most, deadline = case.spec.max_run_seconds, case.asked.preemption.ack_deadline_seconds
    if most is not None and deadline > most and case.spec.preemption.mode is not PreemptMode.KILL:
        yield Found("preemption.ack_deadline_seconds", deadline, {"most": f"{most:g}"})


def _spread_without_effect(case: Case) -> Iterator[Found]:
    for at, role in _roles(case):
        if role.spread is None:
            continue
        if size_of(case.spec, role).gpus is None:
            yield Found(f"{at}.spread", role.spread, {"why": "whole nodes are never shared"})
        elif role.replicas == 1 and has_own_size(role.model_copy(update={"spread": None})):
            why = "a single replica has no other of its role to be kept apart from"
            yield Found(f"{at}.spread", role.spread, {"why": why})


def _shm_beyond_request(case: Case) -> Iterator[Found]:
    if not case.facts.has_pods:
        return
    for at, role in _roles(case):
        own = role.pod.shm_bytes if role.pod else None
        shm = own if own is not None else case.spec.pod.shm_bytes if case.spec.pod else None
        planned = size_of(case.spec, role).memory_bytes
        if shm is not None and planned and shm > planned:
            path = f"{at}.pod.shm_bytes" if own is not None else "pod.shm_bytes"
            yield Found(path, shm, {"role": role.name, "planned": planned})
            if own is None:
                return


def _unknown_taint(case: Case) -> Iterator[Found]:
    nodes = [each for each in case.facts.shapes if each.group == case.spec.group]
    if not case.facts.inventory_known or not nodes or case.spec.wait_for_nodes:
        return
    known = {word for each in nodes for t in each.taints for word in (t, t.partition("=")[0])}
    for index, taint in enumerate(case.spec.tolerations):
        if taint not in known:
            yield Found(f"tolerations[{index}]", taint, {"group": case.spec.group})


def _nodes_of_sharing_replicas(case: Case) -> Iterator[Found]:
    several = case.asked.nodes > 1
    if not several or not any(map(has_own_size, case.spec.roles)):
        return
    if not all(size_of(case.spec, role).spread for role in case.spec.roles):
        yield Found("nodes", case.asked.nodes, {"count": case.spec.nodes})


def _nodes_to_come(case: Case) -> Iterator[Found]:
    if case.spec.wait_for_nodes:
        now = case.spec.model_copy(update={"wait_for_nodes": False})
        for error in check_inventory(now, case.facts):
            yield Found(error.field, error.value, {"why": error.message})


def _secrets_not_masked(case: Case) -> Iterator[Found]:
    if not case.facts.has_pods:
        return
    pods = [("pod", case.spec.pod), *((f"{at}.pod", role.pod) for at, role in _roles(case))]
    for at, pod in pods:
        for index, source in enumerate(pod.env_from if pod is not None else ()):
            if source.secret:
                yield Found(f"{at}.env_from[{index}]", source.name, {"secret": source.secret})


RULES: tuple[Rule, ...] = (
    Rule(
        "waits-for-nodes",
        "`nodes`, `group`, `gpus_per_node`, `node_selector`, of a role too, and others",
        "`wait_for_nodes` is set, and the nodes that there are could never hold the task",
        "the task waits until nodes come: {why}",
        _nodes_to_come,
    ),
    Rule(
        "pods-only",
        "`pod.*`, `roles[N].image`, `roles[N].pod.*`",
        "the nodes run processes, not pods",
        "the nodes of group {group} run no pods: it is validated and then ignored",
        _pods_only,
    ),
    Rule(
        "secrets-not-masked",
        "`pod.env_from[N]`, `roles[N].pod.env_from[N]`",
        "the nodes run pods, and a variable comes from a Secret of Kubernetes",
        "its value is in Secret {secret}, so it is not masked in the output: do not print it",
        _secrets_not_masked,
    ),
    Rule(
        "limits-not-enforced",
        "`cpus`, `memory_bytes`, of a role too",
        "a node of the group has the label `shiftwork.limits=not-enforced`",
        "nodes of group {group} do not enforce limits: it is only counted when the task is placed",
        _limits_not_enforced,
    ),
    Rule(
        "limit-above-nodes",
        "`cpus`, `memory_bytes`, of a role too",
        "the limit is above a smaller request, and above what the largest node of the group has",
        "no node of the group has more than {most}: the node is used up before the limit",
        _limit_above_nodes,
    ),
    Rule(
        "port-leased",
        "`roles[N].ports[N].port`",
        "the nodes run processes, whose replicas share the machine's ports",
        "the replicas share the machine: each gets a port of the platform's range, in {variable}",
        _leased_port,
    ),
    Rule(
        "role-unknown-to-contract",
        "`roles[N].name`",
        "the contract gives variables and files to roles of other names only",
        "the contract {contract} knows {known} alone: this role gets none of its variables",
        _role_unknown_to_contract,
    ),
    Rule(
        "not-rank-0",
        "`roles[N].name`",
        "under the contracts torch and coordinator, a role that is not the first is called "
        + ", ".join(f"`{name}`" for name in _FIRST_RANKS),
        "the contract {contract} ignores names: rank 0, which the others find, is {first}[0]; "
        "list this role first",
        _not_rank_0,
    ),
    Rule(
        "fence-needs-sdk",
        "`fence_after_seconds`",
        "the preemption mode is not sdk",
        "only a program that uses the SDK is ended by it; with preemption by {mode} many do not",
        _fence_without_sdk,
    ),
    Rule(
        "deadline-unused",
        "`preemption.ack_deadline_seconds`",
        "the preemption mode is kill",
        "with preemption by kill the run ends at once: no deadline is given",
        _deadline_of_kill,
    ),
    Rule(
        "deadline-beyond-run",
        "`preemption.ack_deadline_seconds`",
        "it is longer than `max_run_seconds`",
        "the task ends after {most} s in any case: the deadline cannot be used up",
        _deadline_beyond_run,
    ),
    Rule(
        "spread-unused",
        "`roles[N].spread`",
        "the role has whole nodes, or a single replica",
        "has no effect: {why}",
        _spread_without_effect,
    ),
    Rule(
        "shm-above-request",
        "`pod.shm_bytes`, of a role too",
        "in pods, `/dev/shm` may hold more than the memory that is requested",
        "replicas of {role} are planned with {planned} bytes of memory, in which it counts: "
        "their node may run out of memory",
        _shm_beyond_request,
    ),
    Rule(
        "unknown-taint",
        "`tolerations[N]`",
        "no node of the group has the taint",
        "no node of group {group} has this taint: it makes no difference now",
        _unknown_taint,
    ),
    Rule(
        "nodes-are-replicas",
        "`nodes`",
        "replicas of the task may share nodes",
        "it counts the replicas, {count}: they may share nodes, so that fewer are used",
        _nodes_of_sharing_replicas,
    ),
)


def render_markdown() -> str:
    """The rules as a table for the documentation."""
    lines = ["| code | field | when | message |", "| --- | --- | --- | --- |"]
    lines += [f"| `{r.code}` | {r.fields} | {r.when} | {r.message} |" for r in RULES]
    return "\n".join(lines) + "\n"
