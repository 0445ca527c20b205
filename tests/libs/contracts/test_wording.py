"""Suggestions for misspelt names, and what they cost at most."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from libs.contracts.messages import Completion, Contract, Role, StartsAfter, TaskSpec
from libs.contracts.wording import (
    COMPARED_CHARACTERS_MAX,
    COMPARED_MAX,
    SUGGESTED_MAX,
    duration,
    meant,
)
from services.gateway.problems import of_validation
from services.gateway.spec_bodies import TaskSpecBody
from services.scheduler.policy_documents import parse
from services.submit.domain.facts import Defaults, Facts, Limits, Shape
from services.submit.domain.fill import fill_in
from services.submit.domain.validate import validate
from tests.kit.comparisons import counted_comparisons
from tests.kit.specs import TASK_ID, asked


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return counted_comparisons(monkeypatch)


def test_the_nearest_name_is_suggested() -> None:
    assert meant("visoin", ["visitor", "vision", "n" * 200]) == "did you mean vision?"
    assert meant("ann", ["zoe"]) == ""
    assert meant("", ["a"]) == ""


@pytest.mark.parametrize(
    ("short", "long"), [("abc", "abcdefg"), ("a" * 20, "a" * 46), ("ab", "abcd")]
)
def test_names_whose_lengths_are_just_similar_are_compared(short: str, long: str) -> None:
    assert meant(short, [long]) == f"did you mean {long}?"
    assert meant(long, [short]) == f"did you mean {short}?"


def test_few_names_of_a_similar_length_are_compared(compared: list[int]) -> None:
    meant("user-x", [f"user-{n}" for n in range(10_000)])
    meant("user-x", ["u", "a-name-that-is-much-longer-than-that"] * 1000)
    meant("n" * (COMPARED_CHARACTERS_MAX + 1), ["n" * COMPARED_CHARACTERS_MAX])
    assert compared == [COMPARED_MAX]


NAMES = [f"worker-{n}" for n in range(32)]
ROLES = tuple(Role(name=name, command=("x",), replicas=1) for name in NAMES)
AFTER = tuple(StartsAfter(role=f"wroker-{n}") for n in range(32))


def submitted(**fields: object) -> None:
    shapes = tuple(Shape("default", 8, 8, 2**40, 1, taints=(f"taint-{n}",)) for n in range(2))
    facts = Facts(shapes=shapes, inventory_known=True)
    spec: TaskSpec = asked(roles=fields.pop("roles", ROLES), nodes=0).model_copy(update=fields)
    spec = fill_in(spec, task_id=TASK_ID, defaults=Defaults())
    validate(spec, owner="ann", team="", facts=facts, limits=Limits())


def misspelt_fields() -> None:
    try:
        TaskSpecBody.model_validate({f"prioritty{n}": 1 for n in range(50)})
    except ValueError as error:
        of_validation(error.errors(), TaskSpecBody)  # type: ignore[attr-defined]


DOCUMENTS: dict[str, Callable[[], object]] = {
    "starts_after": lambda: submitted(
        roles=tuple(each.model_copy(update={"starts_after": AFTER}) for each in ROLES)
    ),
    "contract": lambda: submitted(contract=Contract.TF_CONFIG),
    "completion": lambda: submitted(
        completion=Completion(success=tuple(f"wroker-{n}[all]" for n in range(20)))
    ),
    "tolerations": lambda: submitted(
        roles=ROLES[:1], tolerations=tuple(f"x{n}-tiant" for n in range(20))
    ),
    "fields of a body": misspelt_fields,
    "policies": lambda: parse(
        "groups:\n" + "".join(f"  g{n}: {{policy: fife}}\n" for n in range(300))
    ),
    "groups of policies": lambda: parse(
        "groups:\n" + "".join(f"  gp{n}: {{policy: fifo}}\n" for n in range(300)),
        capacity={f"group-{n}": 1.0 for n in range(50)},
    ),
}


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_document_with_many_misspelt_names_costs_few_comparisons(
    kind: str, compared: list[int]
) -> None:
    DOCUMENTS[kind]()
    assert len(compared) == SUGGESTED_MAX, kind


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (40, "40 s"),
        (720, "12 min"),
        (12_600, "3.5 h"),
        (93_600, "26 h"),
        (-432_000, "-5 days"),
    ],
)
def test_a_duration_has_one_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text
