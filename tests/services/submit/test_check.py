from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.messages import (
    CreateTask,
    Override,
    Port,
    PreemptionPolicy,
    PreemptMode,
    Refusal,
    RefusalCode,
    RetryPolicy,
    Role,
    TaskSpec,
)
from services.submit.domain.facts import Defaults, Facts, Limits
from services.submit.domain.fill import fill_in
from services.submit.domain.spec_fields import check_fields
from services.submit.domain.validate import ERRORS_SHOWN_MAX, check_requester, validate
from services.submit.settings import SubmitSettings
from tests.kit.specs import TASK_ID, asked, valid_specs

LIMITS = Limits()


def filled(spec: TaskSpec) -> TaskSpec:
    return fill_in(spec, task_id=TASK_ID, defaults=Defaults())


def validated(spec: TaskSpec, facts: Facts | None = None) -> TaskSpec | Refusal:
    return validate(filled(spec), owner="ann", team="", facts=facts or Facts(), limits=LIMITS)


@given(valid_specs())
@settings(max_examples=60, deadline=None)
def test_a_valid_spec_is_accepted_and_is_a_fixed_point(spec: TaskSpec) -> None:
    accepted = validated(spec)
    assert isinstance(accepted, TaskSpec), accepted
    assert filled(accepted) == accepted
    assert validated(accepted) == accepted
    assert accepted.nodes == sum(role.replicas for role in spec.roles)
    assert TaskSpec.model_validate_json(accepted.to_json()) == accepted


def role(**changes: Any) -> tuple[Role, ...]:
    return (Role(**({"name": "worker", "replicas": 1, "command": ("true",)} | changes)),)


def policy(**changes: Any) -> PreemptionPolicy:
    return PreemptionPolicy(**({"mode": PreemptMode.SDK} | changes))


TOO_LONG_COMMAND = ("x" * (LIMITS.command_bytes_max + 1),)
TOO_MANY_WORDS = ("x",) * (LIMITS.command_arguments_max + 1)
TOO_MANY_VARIABLES = {f"V{number}": "" for number in range(LIMITS.env_entries_max + 1)}
TOO_LARGE_VARIABLE = {"V": "x" * LIMITS.env_bytes_max}
TOO_MANY_LABELS = {f"l{number}": "" for number in range(LIMITS.labels_max + 1)}
TOO_MANY_SELECTED = {f"l{number}": "" for number in range(LIMITS.selector_max + 1)}
SEVERAL = tuple(Role(name=f"r{n}", replicas=1, command=("true",)) for n in range(33))

# One row for every way in which a field can be wrong: the change, the field named, the value shown.
FAULTS: list[tuple[str, dict[str, Any], str, str]] = [
    ("name", {"name": "two words"}, "name", "two words"),
    ("name too long", {"name": "n" * 64}, "name", "n" * 64),
    ("name begins wrong", {"name": ".hidden"}, "name", ".hidden"),
    ("name not ascii", {"name": "tâche"}, "name", "tâche"),
    ("group", {"group": "Default"}, "group", "Default"),
    ("no roles", {"roles": ()}, "roles", "0"),
    ("too many roles", {"roles": SEVERAL}, "roles", "33"),
    (
        "resume changes nothing",
        {"roles": role(resume=Override())},
        "roles[0].resume",
        "",
    ),
    (
        "resume without a program",
        {"roles": role(resume=Override(command=("",)))},
        "roles[0].resume.command",
        "",
    ),
    (
        "variable of resume",
        {"roles": role(resume=Override(env={"1A": ""}))},
        "roles[0].resume.env",
        "1A",
    ),
    (
        "platform's variable in resume",
        {"roles": role(resume=Override(env={"SHIFTWORK_RANK": "1"}))},
        "roles[0].resume.env.SHIFTWORK_RANK",
        "(not shown)",
    ),
    ("role name", {"roles": role(name="Worker")}, "roles[0].name", "Worker"),
    ("role names", {"roles": role() + role()}, "roles[1].name", "worker"),
    ("replicas", {"roles": role(replicas=-1)}, "roles[0].replicas", "-1"),
    ("no command", {"roles": role(command=())}, "roles[0].command", ""),
    ("empty program", {"roles": role(command=("", "x"))}, "roles[0].command", ""),
    ("long command", {"roles": role(command=TOO_LONG_COMMAND)}, "roles[0].command", "65537 bytes"),
    ("many words", {"roles": role(command=TOO_MANY_WORDS)}, "roles[0].command", "1025 arguments"),
    ("NUL in a word", {"roles": role(command=("a", "b\0"))}, "roles[0].command[1]", ""),
    ("variable's name", {"env": {"1A": ""}}, "env", "1A"),
    ("variable's value", {"env": {"A": "\0"}}, "env.A", "(not shown)"),
    ("ours", {"env": {"SHIFTWORK_URL": "x"}}, "env.SHIFTWORK_URL", "(not shown)"),
    ("torchrun's", {"env": {"PET_NNODES": "1"}}, "env.PET_NNODES", "(not shown)"),
    ("the gang's", {"env": {"MASTER_ADDR": "x"}}, "env.MASTER_ADDR", "(not shown)"),
    (
        "the devices",
        {"env": {"CUDA_VISIBLE_DEVICES": "0"}},
        "env.CUDA_VISIBLE_DEVICES",
        "(not shown)",
    ),
    ("a role's variable", {"roles": role(env={"RANK": "0"})}, "roles[0].env.RANK", "(not shown)"),
    ("many variables", {"env": TOO_MANY_VARIABLES}, "env", "513 variables"),
    ("large variables", {"env": TOO_LARGE_VARIABLE}, "env", "65539 bytes"),
    ("empty label", {"labels": {" ": "x"}}, "labels", " "),
    ("long label", {"labels": {"k": "v" * 1025}}, "labels", "k"),
    ("NUL in a label", {"labels": {"k": "\0"}}, "labels", "k"),
    ("many labels", {"labels": TOO_MANY_LABELS}, "labels", "65 labels"),
    ("selected key", {"node_selector": {"-disk": "nvme"}}, "node_selector", "-disk"),
    ("selected value", {"node_selector": {"disk": "a b"}}, "node_selector.disk", "a b"),
    ("many selected", {"node_selector": TOO_MANY_SELECTED}, "node_selector", "33 labels"),
    ("no taint", {"tolerations": ("flaky", "=x")}, "tolerations[1]", "=x"),
    ("taint without its value", {"tolerations": ("flaky=",)}, "tolerations[0]", "flaky="),
    ("many taints", {"tolerations": ("flaky",) * 33}, "tolerations", "33 taints"),
    ("relative path", {"working_directory": "here"}, "working_directory", "here"),
    ("sum", {"roles": role(replicas=2), "nodes": 3}, "nodes", "3"),
    ("too many nodes", {"roles": role(replicas=8193)}, "nodes", "8193"),
    ("negative gpus", {"gpus_per_node": -1}, "gpus_per_node", "-1"),
    ("too many gpus", {"gpus_per_node": 1025}, "gpus_per_node", "1025"),
    ("no cpus", {"cpus": 0.0}, "cpus", "0.0"),
    ("no memory", {"memory_bytes": 0}, "memory_bytes", "0"),
    ("no time", {"max_run_seconds": 0.0}, "max_run_seconds", "0.0"),
    ("negative time", {"max_run_seconds": -1.0}, "max_run_seconds", "-1.0"),
    ("short fence", {"fence_after_seconds": 1.0}, "fence_after_seconds", "1.0"),
    ("retries", {"retry": RetryPolicy(max_retries=101)}, "retry.max_retries", "101"),
    ("negative retries", {"retry": RetryPolicy(max_retries=-1)}, "retry.max_retries", "-1"),
    (
        "deadline",
        {"preemption": policy(ack_deadline_seconds=7200.0)},
        "preemption.ack_deadline_seconds",
        "7200.0",
    ),
    (
        "signal",
        {"preemption": policy(mode=PreemptMode.SIGNAL, signal="KILL")},
        "preemption.signal",
        "KILL",
    ),
    ("signal unused", {"preemption": policy(signal="TERM")}, "preemption.signal", "TERM"),
]


@pytest.mark.parametrize(
    ("changes", "field", "value"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS]
)
def test_an_error_has_field_value_and_fix(changes: dict[str, Any], field: str, value: str) -> None:
    refused = validated(asked(**changes))
    assert isinstance(refused, Refusal)
    assert refused.code is RefusalCode.INVALID
    named = {(error.field, error.value) for error in refused.errors}
    assert (field, value) in named
    assert all(error.message and error.fix for error in refused.errors)


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"preemption": policy(ack_deadline_seconds=32_400.0)}, "ACK_DEADLINE_SECONDS_MAX"),
        ({"preemption": policy(ack_deadline_seconds=0.5)}, "ACK_DEADLINE_SECONDS_MIN"),
        ({"retry": RetryPolicy(max_retries=101)}, "RETRIES_MAX"),
        ({"roles": role(replicas=8193)}, "NODES_MAX"),
        ({"gpus_per_node": 1025}, "GPUS_PER_NODE_MAX"),
        ({"labels": TOO_MANY_LABELS}, "LABELS_MAX"),
        ({"env": TOO_MANY_VARIABLES}, "ENV_ENTRIES_MAX"),
    ],
)
def test_a_limit_that_can_be_set_is_named_with_its_setting(
    changes: dict[str, Any], setting: str
) -> None:
    refused = validated(asked(**changes))
    assert isinstance(refused, Refusal)
    advice = f"an administrator sets the limit: SHIFTWORK_SUBMIT_{setting}"
    assert any(error.fix.endswith(advice) for error in refused.errors), refused.errors
    assert setting.lower() in SubmitSettings.model_fields


@pytest.mark.parametrize(
    ("changes", "field", "value", "message"),
    [
        ({"gpus": -1}, "gpus", "-1", "is not between 0 and 1024"),
        ({"gpus": 1025}, "gpus", "1025", "is not between 0 and 1024"),
        ({"gpus": -1, "auxiliary": True}, "gpus", "-1", "is not between 0 and 1024"),
        ({"gpus": 1025, "auxiliary": True}, "gpus", "1025", "is not between 0 and 1024"),
        ({"cpus": 1e306}, "cpus", "1e+306", "is not more than 0 cores and at most 65536 cores"),
        ({"cpus": 1e20}, "cpus", "1e+20", "is not more than 0 cores and at most 65536 cores"),
        ({"cpus": -0.5}, "cpus", "-0.5", "is not more than 0 cores and at most 65536 cores"),
        (
            {"memory_bytes": -5},
            "memory_bytes",
            "-5",
            "is not more than 0 bytes and at most 1125899906842624 bytes",
        ),
        ({"replicas": -1}, "replicas", "-1", "a role has 1 to 8192 replicas"),
        (
            {"ports": (Port(name="a", port=-1),)},
            "ports[0].port",
            "-1",
            "is not between 1024 and 65535",
        ),
        (
            {"ports": (Port(name="a", port=99999),)},
            "ports[0].port",
            "99999",
            "is not between 1024 and 65535",
        ),
    ],
)
def test_an_amount_of_a_role_out_of_its_bounds_is_one_error(
    changes: dict[str, Any], field: str, value: str, message: str
) -> None:
    roles = role(name="first") + role(**changes)
    # A role beside it keeps an auxiliary one from being alone.
    total = sum(each.replicas for each in roles)
    found = [
        error
        for error in check_fields(filled(asked(roles=roles, nodes=total)), LIMITS)
        if error.field != "nodes"
    ]
    assert [(e.field, e.value, e.message) for e in found] == [(f"roles[1].{field}", value, message)]
    assert "leave it out, or choose a" in found[0].fix


def test_the_limit_of_gpus_per_node_holds_for_roles() -> None:
    limits = LIMITS.model_copy(update={"gpus_per_node_max": 16})
    (found,) = check_fields(filled(asked(roles=role(gpus=17))), limits)
    assert (found.field, found.message) == ("roles[0].gpus", "is not between 0 and 16")
    assert found.fix.endswith("SHIFTWORK_SUBMIT_GPUS_PER_NODE_MAX")


def test_durations_in_errors_are_in_seconds() -> None:
    refused = validated(asked(preemption=policy(ack_deadline_seconds=32_400.0)))
    assert isinstance(refused, Refusal)
    assert refused.errors[0].message == "is not between 1 s and 3600 s"
    refused = validated(asked(max_run_seconds=-1.0))
    assert isinstance(refused, Refusal)
    assert refused.errors[0].message == "is not more than 0 s and at most 316224000 s"


def changed(rows: list[int]) -> tuple[TaskSpec, set[str]]:
    """A spec with several faults in different fields."""
    changes: dict[str, Any] = {}
    fields: set[str] = set()
    for row in rows:
        _, change, field, _ = FAULTS[row]
        if not (changes.keys() & change.keys()) and not {"roles", "nodes"} & change.keys():
            changes |= change
            fields.add(field)
    return asked(**changes), fields


@given(st.lists(st.integers(0, len(FAULTS) - 1), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_all_errors_are_reported_at_once(rows: list[int]) -> None:
    spec, fields = changed(rows)
    if fields:
        named = {error.field for error in check_fields(filled(spec), LIMITS)}
        assert fields <= named


SECRET = "hunter2-very-secret"


@pytest.mark.parametrize(
    "make",
    [
        lambda: asked(env={"RANK": SECRET, "B": SECRET + "\0"}, name="a b"),
        lambda: asked(roles=role(env={"PET_X": SECRET + "\0"})),
        lambda: asked(command=(SECRET + "\0", SECRET)),
        lambda: asked(command=(SECRET * 5000,)),
    ],
)
def test_no_error_shows_a_secret(make: Callable[[], TaskSpec]) -> None:
    refused = validated(make())
    assert isinstance(refused, Refusal)
    assert SECRET not in refused.to_json().decode()


def test_the_number_of_errors_is_bounded() -> None:
    refused = validated(asked(env={f"{number}bad": "" for number in range(400)}))
    assert isinstance(refused, Refusal)
    assert len(refused.errors) == ERRORS_SHOWN_MAX
    assert "(and 399 more)" in refused.detail


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"owner": "Ann"}, "owner"),
        ({"owner": ""}, "owner"),
        ({"team": "a.b"}, "team"),
        ({"client_key": "k" * 256}, "client_key"),
        ({"client_key": "a\0b"}, "client_key"),
    ],
)
def test_the_requester_is_checked(changes: dict[str, str], field: str) -> None:
    refused = check_requester(CreateTask(**({"owner": "ann"} | changes), spec=asked()))
    assert refused is not None
    assert [error.field for error in refused.errors] == [field]
    assert check_requester(CreateTask(owner="ann", team="t", client_key="k", spec=asked())) is None


def test_a_taken_name_is_a_conflict() -> None:
    refused = validated(asked(name="mine"), Facts(name_taken_by="tother"))
    assert isinstance(refused, Refusal)
    assert refused.code is RefusalCode.CONFLICT
    assert refused.errors[0].field == "name"
    both = validated(asked(name="mine", cpus=-1.0), Facts(name_taken_by="tother"))
    assert isinstance(both, Refusal)
    assert both.code is RefusalCode.INVALID
    assert {error.field for error in both.errors} == {"name", "cpus"}


def test_nodes_can_be_selected_and_taints_tolerated() -> None:
    spec = asked(
        node_selector={"disk": "nvme", "example.com/gen": "h100", "bare": ""},
        tolerations=("flaky", "reserved=vision"),
    )
    accepted = validated(spec)
    assert isinstance(accepted, TaskSpec), accepted
    assert accepted.node_selector == spec.node_selector
    assert accepted.tolerations == spec.tolerations
