"""Renders a task's contract: the variables and files by which its ranks find each other. Pure;
called by ``run_orders.py``.

``libs/contracts/task_contracts.py`` declares the variables. A renderer gets the host table once
and returns a function that is called for each host, so that what all ranks share is made once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from libs.contracts.messages import Contract
from libs.contracts.task_contracts import HOSTFILE, HYDRA_HOSTFILE, TF_CONFIG, contract_of
from services.launcher.hosts import Host

LAUNCHER, WORKER, MASTER = "launcher", "worker", "master"


@dataclass(frozen=True, slots=True)
class Rendered:
    """What one rank gets of its contract."""

    env: Mapping[str, str] = field(default_factory=dict[str, str])
    # Content by name. The runtime puts them beside the context file.
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    # Variables whose value is the path of one of these files, which only the runtime knows.
    paths: Mapping[str, str] = field(default_factory=dict[str, str])


Hosts = Sequence[Host]
Render = Callable[[Host], Rendered]


def renderer(contract: Contract, hosts: Hosts) -> Render:
    """The function that renders the contract for each of these hosts."""
    return RENDERERS[contract_of(contract).name](hosts)


def torch(hosts: Hosts) -> Render:
    """The variables of ``torch.distributed`` and of ``torchrun``; rank 0 is the master."""
    first = _first(hosts)
    world_size, port, address = str(len(hosts)), str(first.port), first.address
    shared = {
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "WORLD_SIZE": world_size,
        "PET_NNODES": world_size,
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": port,
    }

    def render(host: Host) -> Rendered:
        rank = str(host.rank)
        own = {"RANK": rank, "PET_NODE_RANK": rank, "PET_NPROC_PER_NODE": str(host.slots)}
        return Rendered({**shared, **own})

    return render


def tf_config(hosts: Hosts) -> Render:
    """TF_CONFIG. Evaluators know the cluster and are no part of it. A task of one rank has no
    cluster."""
    if len(hosts) == 1:
        return lambda _: Rendered()
    addresses = {name: _addresses(hosts, name) for name in TF_CONFIG.members}
    cluster = json.dumps({name: found for name, found in addresses.items() if found})

    def render(host: Host) -> Rendered:
        task = json.dumps({"type": host.role, "index": host.index})
        # Composed, because the cluster of a large gang takes long to serialize for every rank.
        text = f'{{"cluster": {cluster}, "task": {task}, "environment": "cloud"}}'
        return Rendered({"TF_CONFIG": text})

    return render


def rank(hosts: Hosts) -> Render:
    """The variables of Kubeflow's XGBoostJob: the master is rank 0, the others follow."""
    ordered = sorted(hosts, key=lambda host: host.rank)
    master = next((host for host in ordered if host.role == MASTER), ordered[0])
    workers = [host for host in ordered if host is not master]
    number = {host.rank: place for place, host in enumerate([master, *workers])}
    shared = {
        "MASTER_ADDR": master.address,
        "MASTER_PORT": str(master.port),
        "WORLD_SIZE": str(len(hosts)),
    }
    if workers:
        one_port = len({host.port for host in workers}) == 1
        found = (host.address if one_port else f"{host.address}:{host.port}" for host in workers)
        shared["WORKER_ADDRS"] = ",".join(found)

    def render(host: Host) -> Rendered:
        own = {"RANK": str(number[host.rank])}
        if workers:
            own["WORKER_PORT"] = str(workers[0].port if host is master else host.port)
        return Rendered({**shared, **own})

    return render


def coordinator(hosts: Hosts) -> Render:
    """The variables of Kubeflow's JAXJob: rank 0 is the coordinator."""
    first = _first(hosts)
    shared = {
        "COORDINATOR_ADDRESS": first.address,
        "COORDINATOR_PORT": str(first.port),
        "NUM_PROCESSES": str(len(hosts)),
    }
    return lambda host: Rendered({**shared, "PROCESS_ID": str(host.rank)})


SSH_ARGUMENTS = "-o ConnectionAttempts=10"


def mpi(hosts: Hosts) -> Render:
    """The files of hosts and slots, for the launcher alone, and the variables by which Open MPI,
    Intel MPI and MPICH find them.

    An address has one line, because Open MPI 5 refuses two lines of one address that name slots.
    """
    workers = [host for host in hosts if host.role == WORKER]
    slots = Counter[str]()
    for host in workers:
        slots[host.address] += host.slots
    launcher = Rendered(
        env={
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_orte_set_default_slots": str(workers[0].slots if workers else 1),
            "OMPI_MCA_plm_rsh_args": SSH_ARGUMENTS,
            "PRTE_MCA_prte_keep_fqdn_hostnames": "true",
            "PRTE_MCA_plm_ssh_args": SSH_ARGUMENTS,
            "I_MPI_PERHOST": str(next(iter(slots.values()), 1)),
            "K_MPI_JOB_ROLE": LAUNCHER,
        },
        files={
            HOSTFILE: "".join(f"{address} slots={count}\n" for address, count in slots.items()),
            HYDRA_HOSTFILE: "".join(f"{address}:{count}\n" for address, count in slots.items()),
        },
        paths={
            "OMPI_MCA_orte_default_hostfile": HOSTFILE,
            "PRTE_MCA_prte_default_hostfile": HOSTFILE,
            "I_MPI_HYDRA_HOST_FILE": HYDRA_HOSTFILE,
            "HYDRA_HOST_FILE": HYDRA_HOSTFILE,
        },
    )
    worker = Rendered({"K_MPI_JOB_ROLE": WORKER})
    by_role = {LAUNCHER: launcher, WORKER: worker}
    return lambda host: by_role.get(host.role, Rendered())


def none(_hosts: Hosts) -> Render:
    """No variable and no file beside the platform's own."""
    return lambda _: Rendered()


def _first(hosts: Hosts) -> Host:
    return min(hosts, key=lambda host: host.rank)


def _addresses(hosts: Hosts, role: str) -> list[str]:
    """``host:port`` of a role's replicas, in the order of their indices."""
    found = sorted((host for host in hosts if host.role == role), key=lambda host: host.index)
    return [f"{host.address}:{host.port}" for host in found]


RENDERERS: Mapping[Contract, Callable[[Hosts], Render]] = {
    Contract.TORCH: torch,
    Contract.TF_CONFIG: tf_config,
    Contract.RANK: rank,
    Contract.COORDINATOR: coordinator,
    Contract.MPI: mpi,
    Contract.NONE: none,
}
