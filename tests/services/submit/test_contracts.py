"""Whether a task can have the contract that it names."""

from __future__ import annotations

import pytest

from libs.contracts.messages import Contract, Refusal, Role, TaskSpec
from libs.contracts.task_contracts import CONTRACTS, LISTED_RANKS_MAX, TaskContract
from services.submit.domain.facts import Defaults, Facts, Limits
from services.submit.domain.fill import fill_in
from services.submit.domain.validate import validate
from tests.kit.specs import TASK_ID, asked


def validated(
    contract: Contract, env: dict[str, str] | None = None, **sizes: int
) -> TaskSpec | Refusal:
    roles = tuple(Role(name=name, replicas=count, command=("x",)) for name, count in sizes.items())
    spec = fill_in(
        asked(contract=contract, env=env or {}, roles=roles or (Role(command=("x",)),)),
        task_id=TASK_ID,
        defaults=Defaults(),
    )
    return validate(spec, owner="ann", team="", facts=Facts(), limits=Limits())


def errors(contract: Contract, env: dict[str, str] | None = None, **sizes: int) -> list[str]:
    """Field, value and message of each error."""
    found = validated(contract, env, **sizes)
    assert isinstance(found, Refusal), found
    assert all(each.fix for each in found.errors)
    return [f"{each.field} {each.value}: {each.message}" for each in found.errors]


def test_a_task_without_a_contract_gets_torch() -> None:
    accepted = validated(Contract.UNSPECIFIED)
    assert isinstance(accepted, TaskSpec)
    assert accepted.contract is Contract.TORCH


@pytest.mark.parametrize(
    ("contract", "sizes"),
    [
        (Contract.TF_CONFIG, {"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}),
        (Contract.TF_CONFIG, {"worker": 2}),
        (Contract.RANK, {"master": 1, "worker": 2}),
        (Contract.RANK, {"anything": 2}),
        (Contract.COORDINATOR, {"worker": 2}),
        (Contract.MPI, {"launcher": 1, "worker": 2}),
        (Contract.NONE, {"a": 1, "b": 2}),
    ],
)
def test_a_task_that_can_have_its_contract_is_accepted(
    contract: Contract, sizes: dict[str, int]
) -> None:
    assert isinstance(validated(contract, None, **sizes), TaskSpec)


def test_mpi_needs_a_launcher_and_workers() -> None:
    assert errors(Contract.MPI, worker=2) == [
        "contract mpi: needs a role launcher, which the task does not have"
    ]
    assert errors(Contract.MPI, launcher=1) == [
        "contract mpi: needs a role worker, which the task does not have"
    ]
    assert errors(Contract.MPI, launcher=2, worker=1) == [
        "roles[0].replicas 2: the contract mpi has one replica of launcher at most"
    ]


def test_tf_config_knows_its_own_roles_only() -> None:
    assert errors(Contract.TF_CONFIG, worker=1, workers=2) == [
        "roles[1].name workers: is no role of the contract tf_config"
    ]
    refused = validated(Contract.TF_CONFIG, worker=1, workers=2)
    assert isinstance(refused, Refusal)
    assert refused.errors[0].fix.startswith("did you mean worker?")
    assert errors(Contract.TF_CONFIG, evaluator=1) == [
        "contract tf_config: needs one of the roles chief, master, worker, ps"
    ]
    assert errors(Contract.TF_CONFIG, chief=1, master=1) == [
        "roles[1].replicas 1: the contract tf_config has one replica of chief and master at most"
    ]


@pytest.mark.parametrize("contract", [Contract.TF_CONFIG, Contract.RANK])
def test_a_list_of_addresses_has_a_bound(contract: Contract) -> None:
    assert isinstance(validated(contract, None, worker=LISTED_RANKS_MAX), TaskSpec)
    [error] = errors(contract, None, worker=LISTED_RANKS_MAX + 1)
    assert error.endswith("lists at most 1024 replicas, and the task has 1025")


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=lambda each: each.word)
def test_the_variables_of_the_contract_and_of_the_platform_are_reserved(
    contract: TaskContract,
) -> None:
    sizes = {"launcher": 1, "worker": 1} if contract.needs else {"worker": 1}
    every = {name for each in CONTRACTS.values() for name in each.variables}
    own = {f"env.{name} (not shown): is set by the platform" for name in contract.variables}
    ours = {
        f"env.{name} (not shown): is set by the platform"
        for name in ("SHIFTWORK_RANK", "CUDA_VISIBLE_DEVICES")
    }
    env = dict.fromkeys([*every, "SHIFTWORK_RANK", "CUDA_VISIBLE_DEVICES"], "x")
    assert set(errors(contract.name, env, **sizes)) == own | ours


def test_the_fix_names_the_contract_that_reserves_nothing() -> None:
    refused = validated(Contract.TORCH, {"WORLD_SIZE": "1"})
    assert isinstance(refused, Refusal)
    assert "with the contract none it is yours to set" in refused.errors[0].fix
    assert isinstance(validated(Contract.NONE, {"WORLD_SIZE": "1"}), TaskSpec)
