"""The JSON schemas of policy documents: they accept what the scheduler accepts, and reject what it
rejects in a single value."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from services.gateway.api.examples import POLICY
from services.gateway.api.policy_schemas import SCHEMAS
from services.scheduler import policy_documents as documents
from services.scheduler import policy_fields as fields
from services.scheduler.domain.model.group_policy import GroupPolicy
from tests.services.gateway.served_schemas import SCHEMAS as SERVED
from tests.services.gateway.served_schemas import exact

SECTIONS = {
    "PolicyDocument": documents.GROUP,
    "PolicyTimeshare": documents.TIMESHARE,
    "PolicyRotation": documents.ROTATION,
    "PolicyShares": documents.SHARES,
    "PolicyDemotion": documents.DEMOTION,
    "PolicyVirtualCluster": documents.CLUSTER,
}
# Of each kind of value some that are right for one field and wrong for others.
VALUES: list[Any] = [
    *(True, False, 0, 1, 7, 0.5, 1.5, -1, 10**9, 10**7, "", "x", "X y", "zone/rack", "fifo"),
    *("normal", "auto", "15m", "90s", "1.5h", "15 minutes", [], ["a"], ["a", "a"], [1], {}),
    *({"a": 1}, {"a": "1"}, {"a": 0}, {"A b": 1}, [{}], [["a"]], {"pass": "15m"}, {"pass": "soon"}),
    *({"users": {"ann": 2}}, {"first_slice": 5}, {"first_slice": {}}, {"colour": 1}),
    *([{"level": "high", "to": "low", "after": "1h"}], [{"level": "high", "to": "low"}]),
    *([{"name": "a", "nodes": 1, "users": ["ann"]}], [{"name": "a", "nodes": "1"}], [{"nodes": 1}]),
]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_schema_and_the_scheduler_agree_on_each_value(section: str) -> None:
    table = SECTIONS[section]
    assert set(SCHEMAS[section]["properties"]) == set(table)
    accepted = 0
    for key in table:
        schema = {
            "components": {"schemas": SCHEMAS},
            **SCHEMAS[section]["properties"][key],
        }
        validator = jsonschema.Draft202012Validator(schema)
        for value in VALUES:
            problems = fields.Problems()
            fields.section({key: value}, "x", table, problems)
            accepted += not problems.errors
            assert validator.is_valid(value) is not bool(problems.errors), (
                key,
                value,
                problems.errors,
            )
    assert accepted >= len(table)


def test_a_key_that_is_not_known_is_rejected_and_null_is_not() -> None:
    for document, is_right in (
        ({"colour": 1}, False),
        (dict.fromkeys(documents.GROUP), True),
        ({"timeshare": {"pass": None}}, True),
        ({"timeshare": {"colour": 1}}, False),
    ):
        assert exact("PolicyDocument").is_valid(document) is is_right
        assert bool(documents.parse(json.dumps(document), group="a").errors) is not is_right


def test_documents_that_the_scheduler_writes_are_valid() -> None:
    found = documents.parse(json.dumps({"groups": {"a": POLICY, "b": {"demotions": []}}}))
    assert found.errors == ()
    for policy in (*found.policies, GroupPolicy("default")):
        exact("PolicyDocument").validate(documents.document_of(policy))


def test_the_examples_are_policies() -> None:
    for name, group in (("PolicyFile", ""), ("PolicyDocument", "a")):
        (example,) = SERVED[name]["examples"]
        assert documents.parse(json.dumps(example), group=group).errors == ()
