"""The ports that roles declare: which are refused, and with what."""

from __future__ import annotations

import pytest

from libs.contracts.messages import Contract, Port, Refusal, Role, TaskSpec
from libs.contracts.port_names import RESERVED_PORT_NAMES, is_port_name
from libs.pods.formats import is_dns_label
from services.submit.domain.facts import Defaults, Facts, Limits
from services.submit.domain.fill import fill_in
from services.submit.domain.port_fields import ENDPOINTS_MAX, PORTS_PER_ROLE_MAX
from services.submit.domain.validate import validate
from tests.kit.specs import TASK_ID, asked


def validated(
    *ports: Port, contract: Contract = Contract.TORCH, replicas: int = 1
) -> TaskSpec | Refusal:
    role = Role(name="worker", replicas=replicas, command=("x",), ports=ports)
    spec = asked(contract=contract, roles=(role,))
    filled = fill_in(spec, task_id=TASK_ID, defaults=Defaults())
    return validate(filled, owner="ann", team="", facts=Facts(), limits=Limits())


def errors(
    *ports: Port, contract: Contract = Contract.TORCH, replicas: int = 1
) -> list[tuple[str, str]]:
    """Field and value of each error."""
    found = validated(*ports, contract=contract, replicas=replicas)
    assert isinstance(found, Refusal), found
    assert all(each.message and each.fix for each in found.errors)
    return [(each.field, each.value) for each in found.errors]


def port(name: str = "board", number: int | None = None) -> Port:
    return Port(name=name, port=number)


def test_ports_with_and_without_a_number_are_accepted() -> None:
    found = validated(port("board", 6006), port("rpc-in"), port("x1", 65_535), port("a", 1024))
    assert isinstance(found, TaskSpec), found


@pytest.mark.parametrize(
    "name", ["", "Board", "a_b", "-a", "a-", "a--b", "22", "a" * 16, "a.b", "ä", "a\n"]
)
def test_a_name_has_the_form_of_a_container_ports(name: str) -> None:
    assert not is_port_name(name)
    assert errors(port(name)) == [("roles[0].ports[0].name", name)]


@pytest.mark.parametrize("name", ["a", "a1", "1a", "grpc-web", "a" * 15])
def test_every_name_is_a_dns_label(name: str) -> None:
    assert is_port_name(name)
    assert is_dns_label(name)


@pytest.mark.parametrize("name", sorted(RESERVED_PORT_NAMES))
def test_the_contracts_own_names_are_reserved(name: str) -> None:
    assert errors(port(name)) == [("roles[0].ports[0].name", name)]


def test_names_and_numbers_are_unique_in_a_role() -> None:
    assert errors(port("a"), port("a")) == [("roles[0].ports[1].name", "a")]
    assert errors(port("a", 6006), port("b", 6006)) == [("roles[0].ports[1].port", "6006")]


@pytest.mark.parametrize("number", [-1, 0, 1023, 65_536])
def test_a_number_has_bounds(number: int) -> None:
    assert errors(port("a", number)) == [("roles[0].ports[0].port", str(number))]


def test_the_port_of_the_contract_is_reserved() -> None:
    refused = errors(port("a", 6666), contract=Contract.COORDINATOR)
    assert refused == [("roles[0].ports[0].port", "6666")]
    assert isinstance(validated(port("a", 6666)), TaskSpec)


def test_there_are_not_too_many() -> None:
    many = tuple(port(f"p{number}") for number in range(PORTS_PER_ROLE_MAX + 1))
    assert errors(*many) == [("roles[0].ports", "17 ports")]
    assert errors(port("a"), replicas=ENDPOINTS_MAX + 1) == [("roles", "1025 ports")]
    assert isinstance(validated(port("a"), replicas=ENDPOINTS_MAX), TaskSpec)
