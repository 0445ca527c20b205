"""The host table of a run: where each of its ranks is reached. Pure; made by ``loop.py`` for every
launch, and read by ``contracts.py``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from libs.contracts.ids import RunId, TaskId
from libs.contracts.messages import Contract, Endpoint, Role, TaskSpec
from libs.contracts.task_contracts import contract_of
from libs.pods.kubernetes_names import pod_name, run_name
from services.launcher.domain.master_ports import MASTER_PORTS, PortRange
from services.launcher.domain.model import PortLease, Run

LOCALHOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Host:
    """One rank as the others see it."""

    rank: int
    role: str
    # Its number among the replicas of its role.
    index: int
    address: str
    # Its port of the task's contract; 0: it has none.
    port: int
    # Programs that fit there: its GPUs, at least one.
    slots: int
    # The ports that its role declares, by name.
    ports: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, order=True)
class PortKey:
    """What one leased port of a run is for: the contract's port of a rank, or a declared one."""

    rank: int
    name: str = ""


# The leased ports of one run.
Leased = Mapping[PortKey, int]


@dataclass(frozen=True, slots=True)
class Network:
    """How the ranks of this launcher's runs are reached."""

    # Whether they share this machine's address and ports, or are pods.
    shares_ports: bool = True
    address: str = LOCALHOST
    ports: PortRange = MASTER_PORTS

    def hosts(self, run: Run, leased: Leased) -> tuple[Host, ...]:
        """The table of a run, in the order of its placements."""
        if self.shares_ports:
            return local_hosts(run, self.address, leased)
        return pod_hosts(run, self.ports)

    def endpoints(self, run: Run, leased: Leased) -> tuple[Endpoint, ...]:
        """Where the declared ports of a run are reached."""
        if run.spec is None or not declares_ports(run.spec):
            return ()
        return tuple(
            Endpoint(rank=host.rank, role=host.role, name=name, address=host.address, port=port)
            for host in sorted(self.hosts(run, leased), key=lambda host: host.rank)
            for name, port in host.ports.items()
        )


LOCAL = Network()


def declares_ports(spec: TaskSpec) -> bool:
    """Whether a role of the task declares ports."""
    return any(role.ports for role in spec.roles)


def leased_ports(leases: Iterable[PortLease]) -> dict[RunId, dict[PortKey, int]]:
    """The leased ports of every run."""
    found: dict[RunId, dict[PortKey, int]] = {}
    for lease in leases:
        of_run = found.setdefault(RunId(TaskId(lease.task_id), lease.attempt), {})
        of_run[PortKey(lease.rank, lease.name)] = lease.port
    return found


def port_keys(run: Run) -> tuple[PortKey, ...]:
    """The ports that a run needs where its ranks share the ports of one machine."""
    assert run.spec is not None, "an assigned run has its specification"
    ranks = tuple(place.rank for place in run.placements)
    keys = [PortKey(rank) for rank in _listening(run.spec.contract, ranks)]
    roles = _roles(run.spec)
    keys += [
        PortKey(place.rank, port.name)
        for place in run.placements
        for port in roles.get(place.role, _NO_ROLE).ports
    ]
    return tuple(keys)


_NO_ROLE = Role()


def _roles(spec: TaskSpec) -> dict[str, Role]:
    return {role.name: role for role in spec.roles}


def _listening(contract: Contract, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks that have a port of the contract."""
    match contract_of(contract).name:
        case Contract.TF_CONFIG | Contract.RANK:
            return ranks
        case Contract.TORCH | Contract.COORDINATOR:
            return (min(ranks),)
        case _:
            return ()


def local_hosts(run: Run, address: str, leased: Leased) -> tuple[Host, ...]:
    """The table of a run on one machine: every rank has the same address."""
    declared: dict[int, dict[str, int]] = {}
    for key in sorted(leased):
        if key.name:
            declared.setdefault(key.rank, {})[key.name] = leased[key]
    return tuple(
        Host(
            rank=place.rank,
            role=place.role,
            index=place.role_index,
            address=address,
            port=leased.get(PortKey(place.rank), 0),
            slots=max(1, len(place.gpus)),
            ports=declared.get(place.rank, {}),
        )
        for place in run.placements
    )


def has_names(spec: TaskSpec, ranks: int) -> bool:
    """Whether the pods of a run have DNS names: those of gangs, and those that serve others."""
    return ranks > 1 or declares_ports(spec)


def pod_hosts(run: Run, ports: PortRange) -> tuple[Host, ...]:
    """The table of a run of pods. Every pod has its own ports. The run's Service gives each rank a
    name, which the pods' search list completes."""
    spec = run.spec
    assert spec is not None, "an assigned run has its specification"
    named = has_names(spec, len(run.placements))
    fixed = contract_of(spec.contract).pod_port or run_port(run.id, ports)
    numbers = {port.port for role in spec.roles for port in role.ports if port.port}
    if fixed in numbers:
        # The contract's own port is refused at submission; the run's is not known there.
        fixed = ports.next_free(fixed, numbers) or fixed
    listening = frozenset(_listening(spec.contract, tuple(each.rank for each in run.placements)))
    declared = {role.name: _pod_ports(role, fixed, ports) for role in spec.roles}
    domain = run_name(run.id)
    return tuple(
        Host(
            rank=place.rank,
            role=place.role,
            index=place.role_index,
            address=f"{pod_name(run.id, place.rank)}.{domain}" if named else LOCALHOST,
            port=fixed if place.rank in listening else 0,
            slots=max(1, len(place.gpus)),
            ports=declared.get(place.role, {}),
        )
        for place in run.placements
    )


def _pod_ports(role: Role, contract_port: int, ports: PortRange) -> dict[str, int]:
    """The ports of each replica of a role: those that it names, and others of the range."""
    taken = {contract_port, *(port.port for port in role.ports if port.port)}
    found: dict[str, int] = {}
    for port in sorted(role.ports, key=lambda port: port.name):
        number = port.port or ports.next_free(contract_port, taken) or 0
        taken.add(number)
        found[port.name] = number
    return found


def run_port(run_id: RunId, ports: PortRange) -> int:
    """A port that the run's id determines, the same at every launch."""
    return ports.first + zlib.crc32(str(run_id).encode()) % (ports.last - ports.first + 1)
