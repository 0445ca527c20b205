"""What each rank finds, contract by contract: exact values on one machine and in pods."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.messages import Contract, Placement, Role, TaskSpec
from libs.contracts.task_contracts import CONTRACTS, TaskContract
from services.launcher.contracts import Rendered, renderer
from services.launcher.domain.master_ports import PortRange
from services.launcher.domain.model import Run, RunState
from services.launcher.hosts import Host, PortKey, local_hosts, pod_hosts, port_keys, run_port
from tests.kit.launcher_builders import a_run, a_spec

PORTS = PortRange(20_000, 27_999)
Sizes = Mapping[str, int]


def run_of(contract: Contract, sizes: Sizes, gpus: int = 1) -> Run:
    """A run with these replicas, in this order of roles."""
    roles = tuple(Role(name=name, replicas=count, command=("x",)) for name, count in sizes.items())
    ranks = [(name, index) for name, count in sizes.items() for index in range(count)]
    spec: TaskSpec = a_spec(len(ranks), contract=contract).model_copy(update={"roles": roles})
    placements = tuple(
        Placement(
            rank=rank, role=name, role_index=index, node_id=f"n{rank}", gpus=tuple(range(gpus))
        )
        for rank, (name, index) in enumerate(ranks)
    )
    return replace(a_run(RunState.ASSIGNED, spec=spec), placements=placements)


def on_one_machine(run: Run) -> tuple[Host, ...]:
    """Each port that it needs is 23000 and the rank."""
    ports = {key: 23_000 + key.rank for key in port_keys(run)}
    return local_hosts(run, "127.0.0.1", ports)


def rendered(run: Run, hosts: Sequence[Host]) -> list[Rendered]:
    assert run.spec is not None
    render = renderer(run.spec.contract, hosts)
    return [render(host) for host in hosts]


def environments(contract: Contract, sizes: Sizes, *, pods: bool = False) -> list[dict[str, str]]:
    run = run_of(contract, sizes)
    hosts = pod_hosts(run, PORTS) if pods else on_one_machine(run)
    return [dict(each.env) for each in rendered(run, hosts)]


def test_torch() -> None:
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "23000", "WORLD_SIZE": "2"}
    torchrun = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": "23000",
    }
    assert environments(Contract.TORCH, {"worker": 2}) == [
        {**shared, **torchrun, "RANK": str(rank), "PET_NODE_RANK": str(rank)} for rank in (0, 1)
    ]


def test_a_task_of_an_earlier_version_has_torch() -> None:
    assert environments(Contract.UNSPECIFIED, {"worker": 2}) == environments(
        Contract.TORCH, {"worker": 2}
    )


def test_tf_config_on_one_machine_has_a_port_for_each_rank() -> None:
    found = environments(Contract.TF_CONFIG, {"chief": 1, "worker": 2, "ps": 1, "evaluator": 1})
    cluster = {
        "chief": ["127.0.0.1:23000"],
        "worker": ["127.0.0.1:23001", "127.0.0.1:23002"],
        "ps": ["127.0.0.1:23003"],
    }
    tasks = [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0), ("evaluator", 0)]
    assert [json.loads(env.pop("TF_CONFIG")) for env in found] == [
        {"cluster": cluster, "task": {"type": role, "index": index}, "environment": "cloud"}
        for role, index in tasks
    ]
    assert found == [{}] * 5


def test_tf_config_in_pods_has_names_and_one_port() -> None:
    [_, env] = environments(Contract.TF_CONFIG, {"worker": 2}, pods=True)
    assert json.loads(env["TF_CONFIG"]) == {
        "cluster": {"worker": ["task-1-0.task-1:2222", "task-1-1.task-1:2222"]},
        "task": {"type": "worker", "index": 1},
        "environment": "cloud",
    }


def test_a_single_replica_has_no_tf_config() -> None:
    assert environments(Contract.TF_CONFIG, {"worker": 1}) == [{}]


def test_rank_counts_from_the_master_wherever_it_stands() -> None:
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "23002", "WORLD_SIZE": "3"}
    shared["WORKER_ADDRS"] = "127.0.0.1:23000,127.0.0.1:23001"
    assert environments(Contract.RANK, {"worker": 2, "master": 1}) == [
        {**shared, "RANK": "1", "WORKER_PORT": "23000"},
        {**shared, "RANK": "2", "WORKER_PORT": "23001"},
        {**shared, "RANK": "0", "WORKER_PORT": "23000"},
    ]


def test_rank_without_a_master_begins_with_rank_0() -> None:
    first, *_ = environments(Contract.RANK, {"worker": 2})
    assert first == {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "23000",
        "WORLD_SIZE": "2",
        # One worker: its port says it all.
        "WORKER_ADDRS": "127.0.0.1",
        "WORKER_PORT": "23001",
        "RANK": "0",
    }


def test_rank_in_pods_lists_hosts_alone() -> None:
    first, *_ = environments(Contract.RANK, {"master": 1, "worker": 2}, pods=True)
    assert first == {
        "MASTER_ADDR": "task-1-0.task-1",
        "MASTER_PORT": "9999",
        "WORLD_SIZE": "3",
        "WORKER_ADDRS": "task-1-1.task-1,task-1-2.task-1",
        "WORKER_PORT": "9999",
        "RANK": "0",
    }


def test_a_single_rank_has_no_workers() -> None:
    assert environments(Contract.RANK, {"master": 1}) == [
        {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "23000", "WORLD_SIZE": "1", "RANK": "0"}
    ]


@pytest.mark.parametrize(
    ("pods", "address", "port"),
    [(False, "127.0.0.1", "23000"), (True, "task-1-0.task-1", "6666")],
)
def test_coordinator(pods: bool, address: str, port: str) -> None:
    shared = {"COORDINATOR_ADDRESS": address, "COORDINATOR_PORT": port, "NUM_PROCESSES": "2"}
    assert environments(Contract.COORDINATOR, {"worker": 2}, pods=pods) == [
        {**shared, "PROCESS_ID": "0"},
        {**shared, "PROCESS_ID": "1"},
    ]


def test_mpi_has_a_hostfile_for_the_launcher_in_which_it_is_no_slot() -> None:
    run = run_of(Contract.MPI, {"launcher": 1, "worker": 2}, gpus=4)
    launcher, *workers = rendered(run, pod_hosts(run, PORTS))
    assert launcher == Rendered(
        env={
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_orte_set_default_slots": "4",
            "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
            "PRTE_MCA_prte_keep_fqdn_hostnames": "true",
            "PRTE_MCA_plm_ssh_args": "-o ConnectionAttempts=10",
            "I_MPI_PERHOST": "4",
            "K_MPI_JOB_ROLE": "launcher",
        },
        files={
            "hostfile": "task-1-1.task-1 slots=4\ntask-1-2.task-1 slots=4\n",
            "hostfile.hydra": "task-1-1.task-1:4\ntask-1-2.task-1:4\n",
        },
        paths={
            "OMPI_MCA_orte_default_hostfile": "hostfile",
            "PRTE_MCA_prte_default_hostfile": "hostfile",
            "I_MPI_HYDRA_HOST_FILE": "hostfile.hydra",
            "HYDRA_HOST_FILE": "hostfile.hydra",
        },
    )
    assert workers == [Rendered({"K_MPI_JOB_ROLE": "worker"})] * 2


def test_none() -> None:
    assert environments(Contract.NONE, {"worker": 2}) == [{}, {}]


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=lambda each: each.word)
def test_what_is_rendered_is_what_is_declared(contract: TaskContract) -> None:
    """Submit reserves the declared variables, so one that is not declared could be set twice."""
    roles = {"launcher": 1, "worker": 2} if contract.needs else {"chief": 1, "worker": 2}
    run = run_of(contract.name, roles)
    found = rendered(run, on_one_machine(run))
    names = {name for each in found for name in (*each.env, *each.paths)}
    assert names == set(contract.variables)
    assert {name for each in found for name in each.files} == set(contract.files)


def test_only_ranks_that_listen_need_a_port() -> None:
    sizes = {"launcher": 1, "worker": 2}
    needed = {
        contract.word: [key.rank for key in port_keys(run_of(contract.name, sizes))]
        for contract in CONTRACTS.values()
    }
    assert needed == {
        "torch": [0],
        "tf_config": [0, 1, 2],
        "rank": [0, 1, 2],
        "coordinator": [0],
        "mpi": [],
        "none": [],
    }
    assert PortKey(0) < PortKey(1)


def test_the_port_of_pods_is_fixed_or_the_runs_own() -> None:
    found = {
        contract.word: {host.port for host in pod_hosts(run_of(contract.name, {"x": 2}), PORTS)}
        for contract in CONTRACTS.values()
    }
    own = run_port(run_of(Contract.TORCH, {"x": 2}).id, PORTS)
    assert found == {
        "torch": {own, 0},
        "tf_config": {2222},
        "rank": {9999},
        "coordinator": {6666, 0},
        "mpi": {0},
        "none": {0},
    }


tf_roles = st.dictionaries(
    st.sampled_from(["chief", "worker", "ps", "evaluator"]), st.integers(1, 4), min_size=1
).filter(lambda sizes: sum(sizes.values()) > 1)


@given(tf_roles, st.booleans(), st.randoms())
def test_all_ranks_of_a_run_agree_about_the_cluster(sizes: Sizes, pods: bool, random: Any) -> None:
    run = run_of(Contract.TF_CONFIG, sizes)
    places = list(run.placements)
    random.shuffle(places)
    run = replace(run, placements=tuple(places))
    hosts = pod_hosts(run, PORTS) if pods else on_one_machine(run)
    configs = [json.loads(each.env["TF_CONFIG"]) for each in rendered(run, hosts)]
    [cluster] = {json.dumps(config["cluster"]) for config in configs}
    members = json.loads(cluster)
    assert "evaluator" not in members
    addresses = [address for listed in members.values() for address in listed]
    assert len(set(addresses)) == len(addresses)
    for host, config in zip(hosts, configs, strict=True):
        task = config["task"]
        assert (task["type"], task["index"]) == (host.role, host.index)
        if host.role != "evaluator":
            assert members[host.role][host.index] == f"{host.address}:{host.port}"
