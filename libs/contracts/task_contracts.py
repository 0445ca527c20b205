"""The contracts of tasks: which variables and files tell each rank where the others are.

This is their only declaration. The launcher renders them (``services/launcher/contracts.py``),
submit refuses tasks that cannot have theirs, and the table in ``docs/contracts.md`` is tested
against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from libs.contracts.messages import Contract

# One variable may have 128 KiB on Linux; an address in a cluster has up to 90 bytes.
LISTED_RANKS_MAX = 1024


@dataclass(frozen=True, slots=True)
class TaskContract:
    """One contract."""

    name: Contract
    # Which frameworks read it.
    serves: str
    # Every variable that it may set, with its meaning. A task may not set these itself.
    variables: Mapping[str, str]
    # Other variables that a task may not set: options of the program that reads the variables.
    prefixes: tuple[str, ...] = ()
    # The names of its files, which lie beside the context file.
    files: tuple[str, ...] = ()
    # The port of each rank in pods; None: it has none, or the run's own.
    pod_port: int | None = None
    # Roles that the task must have.
    needs: tuple[str, ...] = ()
    # The only roles that it knows; empty: any. One of ``members`` has to be there.
    roles: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    # Roles of which there is one replica at most, all together.
    single: tuple[str, ...] = ()
    # The role whose end decides a task without rules of its own; empty: those of all roles do.
    decides: str = ""
    # The number of replicas whose addresses fit into one variable.
    ranks_max: int | None = None

    @property
    def word(self) -> str:
        """Its name as people write it."""
        return self.name.name.lower()

    def sets(self, variable: str) -> bool:
        """Whether a variable is the contract's own."""
        return variable in self.variables or variable.startswith(self.prefixes)


TORCH = TaskContract(
    Contract.TORCH,
    serves="PyTorch, torchrun, Lightning, Accelerate",
    variables={
        "MASTER_ADDR": "address of rank 0",
        "MASTER_PORT": "a port of rank 0, the gang's own",
        "WORLD_SIZE": "count of replicas",
        "RANK": "number of this replica",
        "PET_NNODES": "the same as `WORLD_SIZE`, for `torchrun`",
        "PET_NODE_RANK": "the same as `RANK`, for `torchrun`",
        "PET_NPROC_PER_NODE": "GPUs of this replica, at least 1",
        "PET_MASTER_ADDR": "the same as `MASTER_ADDR`, for `torchrun`",
        "PET_MASTER_PORT": "the same as `MASTER_PORT`, for `torchrun`",
    },
    prefixes=("PET_",),
)
TF_CONFIG = TaskContract(
    Contract.TF_CONFIG,
    serves="TensorFlow, Keras",
    variables={
        "TF_CONFIG": "JSON: `cluster` (each role with its `host:port` addresses, without"
        " evaluators), `task` (`type`, `index`), `environment` (`cloud`); absent in a task of one"
        " replica",
    },
    pod_port=2222,
    roles=("chief", "master", "worker", "ps", "evaluator"),
    members=("chief", "master", "worker", "ps"),
    single=("chief", "master"),
    ranks_max=LISTED_RANKS_MAX,
)
RANK = TaskContract(
    Contract.RANK,
    serves="XGBoost, LightGBM",
    variables={
        "RANK": "0 for the master, then the others in their order",
        "WORLD_SIZE": "count of replicas",
        "MASTER_ADDR": "address of the master: the first replica of the role `master`, else rank 0",
        "MASTER_PORT": "the master's port",
        "WORKER_ADDRS": "addresses of all others, separated by commas; an address has `:port` if"
        " the ports differ, as on one machine; absent in a task of one replica",
        "WORKER_PORT": "the port of this worker, on the master that of the first worker; absent in"
        " a task of one replica",
    },
    pod_port=9999,
    ranks_max=LISTED_RANKS_MAX,
)
COORDINATOR = TaskContract(
    Contract.COORDINATOR,
    serves="JAX",
    variables={
        "COORDINATOR_ADDRESS": "address of rank 0",
        "COORDINATOR_PORT": "a port of rank 0, the gang's own",
        "NUM_PROCESSES": "count of replicas",
        "PROCESS_ID": "number of this replica",
    },
    pod_port=6666,
)
# As Open MPI reads it, and as MPICH and Intel MPI do (Hydra).
HOSTFILE, HYDRA_HOSTFILE = "hostfile", "hostfile.hydra"
MPI = TaskContract(
    Contract.MPI,
    serves="MPI, Horovod",
    variables={
        "OMPI_MCA_orte_default_hostfile": "path of `hostfile`; on the launcher alone, as are all"
        " but the last variable",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "`true`",
        "OMPI_MCA_orte_set_default_slots": "slots of the first worker",
        "OMPI_MCA_plm_rsh_args": "`-o ConnectionAttempts=10`",
        "PRTE_MCA_prte_default_hostfile": "path of `hostfile`, for Open MPI 5, as are the next two",
        "PRTE_MCA_prte_keep_fqdn_hostnames": "`true`",
        "PRTE_MCA_plm_ssh_args": "`-o ConnectionAttempts=10`",
        "I_MPI_HYDRA_HOST_FILE": "path of `hostfile.hydra`, for Intel MPI",
        "I_MPI_PERHOST": "slots of the first address, for Intel MPI",
        "HYDRA_HOST_FILE": "path of `hostfile.hydra`, for MPICH",
        "K_MPI_JOB_ROLE": "`launcher` or `worker`",
    },
    files=(HOSTFILE, HYDRA_HOSTFILE),
    needs=("launcher", "worker"),
    decides="launcher",
    single=("launcher",),
)
NONE = TaskContract(
    Contract.NONE, serves="programs that need none, or make their own", variables={}
)
CONTRACTS: Mapping[Contract, TaskContract] = {
    each.name: each for each in (TORCH, TF_CONFIG, RANK, COORDINATOR, MPI, NONE)
}


def contract_of(name: Contract) -> TaskContract:
    """The contract of a task; a task of an earlier version names none and has torch."""
    return CONTRACTS.get(name, TORCH)
