"""The host table of a run: where each of its ranks is reached. Pure; made by ``loop.py`` for every
launch, and read by ``contracts.py``.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from libs.contracts.ids import RunId
from libs.contracts.messages import Contract
from libs.contracts.task_contracts import contract_of
from libs.pods.kubernetes_names import pod_name, run_name
from services.launcher.domain.master_ports import PortRange
from services.launcher.domain.model import Run

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


@dataclass(frozen=True, slots=True, order=True)
class PortKey:
    """What one leased port of a run is for."""

    rank: int


def port_keys(run: Run) -> tuple[PortKey, ...]:
    """The ports that a run needs where its ranks share the ports of one machine."""
    assert run.spec is not None, "an assigned run has its specification"
    ranks = tuple(place.rank for place in run.placements)
    return tuple(PortKey(rank) for rank in _listening(run.spec.contract, ranks))


def _listening(contract: Contract, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks that have a port of the contract."""
    match contract_of(contract).name:
        case Contract.TF_CONFIG | Contract.RANK:
            return ranks
        case Contract.TORCH | Contract.COORDINATOR:
            return (min(ranks),)
        case _:
            return ()


def local_hosts(run: Run, address: str, ports: Mapping[PortKey, int]) -> tuple[Host, ...]:
    """The table of a run on one machine: every rank has the same address."""
    return tuple(
        Host(
            rank=place.rank,
            role=place.role,
            index=place.role_index,
            address=address,
            port=ports.get(PortKey(place.rank), 0),
            slots=max(1, len(place.gpus)),
        )
        for place in run.placements
    )


def pod_hosts(run: Run, ports: PortRange) -> tuple[Host, ...]:
    """The table of a run of pods. Every pod has its own ports; gangs have a Service, in which each
    rank has a name, which the pods' search list completes."""
    assert run.spec is not None, "an assigned run has its specification"
    is_gang = len(run.placements) > 1
    fixed = contract_of(run.spec.contract).pod_port or run_port(run.id, ports)
    listening = frozenset(
        _listening(run.spec.contract, tuple(place.rank for place in run.placements))
    )
    domain = run_name(run.id)
    return tuple(
        Host(
            rank=place.rank,
            role=place.role,
            index=place.role_index,
            address=f"{pod_name(run.id, place.rank)}.{domain}" if is_gang else LOCALHOST,
            port=fixed if place.rank in listening else 0,
            slots=max(1, len(place.gpus)),
        )
        for place in run.placements
    )


def run_port(run_id: RunId, ports: PortRange) -> int:
    """A port that the run's id determines, the same at every launch."""
    return ports.first + zlib.crc32(str(run_id).encode()) % (ports.last - ports.first + 1)
