"""Policy files: what is read, what is refused and how it is named."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.messages import FieldError, Priority
from services.scheduler.domain.disciplines import DISCIPLINES
from services.scheduler.domain.model.group_policy import (
    Demotion,
    GroupPolicy,
    Rotation,
    Shares,
    Timeshare,
    VirtualCluster,
)
from services.scheduler.policy_documents import (
    CLUSTER,
    GROUP,
    POLICIES,
    ROTATION,
    TIMESHARE,
    Parsed,
    PolicyFileError,
    document_of,
    load_file,
    parse,
)
from services.scheduler.policy_fields import PROBLEMS_MAX, written

FULL = """
groups:
  training:
    policy: timeshare
    timeshare: {pass: 30s, restart: 90, budget_share: 0.02, grant_after: 12h, flood_guard: true}
    rotation: {first_slice: 10m, slice: 2h}
    demotions:
      - {level: very_high, to: high, after: 1h}
      - {level: high, to: normal, after: 2d}
    shares: {users: {ann: 2}, teams: {vision: 0.5}}
    virtual_clusters:
      - {name: lab, nodes: 4.5, nodes_max: 8}
      - {name: vision, parent: lab, nodes: 3, teams: [vision], users: [ann]}
      - {name: speech, parent: lab, nodes: 1.5, teams: [speech]}
    protected: 10m
    topology: [zone, rack]
    cross_zone_gangs_max: 2
  dev:
    policy: fifo
"""


def errors(text: str, **options: Any) -> dict[str, FieldError]:
    return {each.field: each for each in parse(text, **options).errors}


def of_group(text: str, **options: Any) -> Parsed:
    return parse(text, group="g", **options)


def test_every_key_is_read() -> None:
    found = parse(FULL, capacity={"training": 8.0, "dev": 1.0})
    assert (found.errors, found.removed) == ((), ())
    assert found.warnings == ()
    training, dev = found.policies
    assert training == GroupPolicy(
        group="training",
        policy="timeshare",
        timeshare=Timeshare(
            pass_seconds=30.0,
            restart_seconds=90.0,
            budget_share=0.02,
            grant_after_seconds=43_200.0,
            flood_guard=True,
        ),
        rotation=Rotation(first_slice_seconds=600.0, slice_seconds=7200.0),
        demotions=(
            Demotion(Priority.VERY_HIGH, Priority.HIGH, 3600.0),
            Demotion(Priority.HIGH, Priority.NORMAL, 172_800.0),
        ),
        shares=Shares({"ann": 2.0}, {"vision": 0.5}),
        virtual_clusters=(
            VirtualCluster("lab", 4.5, nodes_max=8.0),
            VirtualCluster("vision", 3.0, "lab", ("vision",), ("ann",)),
            VirtualCluster("speech", 1.5, "lab", ("speech",)),
        ),
        protected_seconds=600.0,
        topology=("zone", "rack"),
        cross_zone_gangs_max=2,
    )
    assert dev == GroupPolicy("dev", policy="fifo")


def test_the_page_for_operators_is_right() -> None:
    """The examples of the page are valid, and its tables list every key with its default."""
    page = (Path(__file__).parents[3] / "docs/policies.md").read_text()
    examples = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert len(examples) >= 4
    for example in examples:
        found = parse(example)
        assert (found.errors, found.warnings) == ((), ()), found
    documented = {
        key: row.rsplit("|", 2)[1].strip().strip("`")
        for row in page.splitlines()
        if row.startswith("| `")
        for key in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    policy = GroupPolicy("g")
    defaults = {
        **{key: written(policy.timeshare, TIMESHARE)[key] for key in TIMESHARE},
        **{key: written(policy.rotation, ROTATION)[key] for key in ROTATION},
        "cross_zone_gangs_max": policy.cross_zone_gangs_max,
        "policy": policy.policy,
    }
    for key, value in defaults.items():
        assert documented[key] == (str(value).lower() if isinstance(value, bool) else str(value)), (
            key
        )
    assert {*GROUP, *CLUSTER, *POLICIES} - set(documented) == set()


def test_json_is_read_like_yaml() -> None:
    document = {"groups": {"training": document_of(parse(FULL).policies[0])}}
    assert parse(json.dumps(document)).policies == parse(FULL).policies[:1]
    # Editors indent JSON with tabs, which YAML would refuse.
    assert parse(json.dumps(document, indent="\t")).policies == parse(FULL).policies[:1]


def test_omitted_fields_have_their_defaults() -> None:
    assert of_group("").policies == (GroupPolicy("g"),)
    assert of_group("timeshare:\nprotected: null").policies == (GroupPolicy("g"),)
    assert of_group("{}", default_policy="fifo").policies == (GroupPolicy("g", policy="fifo"),)


def test_an_empty_group_takes_away_what_was_set() -> None:
    found = parse("groups: {old: null, new: {}}")
    assert found.removed == ("old",)
    assert [policy.group for policy in found.policies] == ["new"]


@pytest.mark.parametrize(
    ("text", "field", "value", "fix"),
    [
        ("groups: {g: {polcy: fifo}}", "groups.g.polcy", "fifo", "did you mean policy?"),
        ("groups: {g: {policy: fifa}}", "groups.g.policy", "fifa", "did you mean fifo?"),
        ("groups: {g: {policy: srpt}}", "groups.g.policy", "srpt", "known here"),
        ("group: {}", "group", "", "did you mean groups?"),
        ("groups: {G: {}}", "groups.G", "G", "a-z"),
        ("groups: {no: {}}", "groups.False", "False", "put it in quotes"),
        ("groups: [a]", "groups", "", "below it"),
        ("", "groups", "", "groups:"),
        ("3", "document", "3", "below it"),
        ("groups: {g: fifo}", "groups.g", "fifo", "below it"),
        ("groups: {g: {protected: ten}}", "groups.g.protected", "ten", "15m"),
        ("groups: {g: {protected: -1}}", "groups.g.protected", "-1", "0 to 30d"),
        ("groups: {g: {protected: 5w}}", "groups.g.protected", "5w", "15m"),
        ("groups: {g: {protected: true}}", "groups.g.protected", "True", "15m"),
        ("groups: {g: {protected: .inf}}", "groups.g.protected", "inf", "15m"),
        ("groups: {g: {timeshare: {pass: 0}}}", "groups.g.timeshare.pass", "0", "1 to 1d"),
        ("groups: {g: {timeshare: {slice: 1h}}}", "groups.g.timeshare.slice", "1h", "slice_"),
        (
            "groups: {g: {timeshare: {budget_share: 1.5}}}",
            "groups.g.timeshare.budget_share",
            "1.5",
            "0 to 1",
        ),
        (
            "groups: {g: {timeshare: {use_limits: 1}}}",
            "groups.g.timeshare.use_limits",
            "1",
            "true or false",
        ),
        (
            "groups: {g: {rotation: {first_slice: 5h}}}",
            "groups.g.rotation.first_slice",
            "5h",
            "the value of slice",
        ),
        ("groups: {g: {cross_zone_gangs_max: 1.5}}", "groups.g.cross_zone_gangs_max", "1.5", "0"),
        (
            f"groups: {{g: {{cross_zone_gangs_max: {'9' * 400}}}}}",
            "groups.g.cross_zone_gangs_max",
            "a number beyond all bounds",
            "0",
        ),
        ("groups: {g: {topology: [zone, zone]}}", "groups.g.topology[1]", "zone", "keep one"),
        ("groups: {g: {topology: ['a b']}}", "groups.g.topology[0]", "a b", "inside"),
        ("groups: {g: {topology: zone}}", "groups.g.topology", "zone", "a list"),
        ("groups: {g: {shares: {users: {ann: 0}}}}", "groups.g.shares.users.ann", "0", "0.001"),
        ("groups: {g: {shares: {users: {1: 2}}}}", "groups.g.shares.users.1", "1", "quotes"),
        ("groups: {g: {shares: {ann: 2}}}", "groups.g.shares.ann", "2", "known here"),
        (
            "groups: {g: {demotions: [{level: high, to: high, after: 1h}]}}",
            "groups.g.demotions[0].to",
            "high",
            "below high",
        ),
        (
            "groups: {g: {demotions: [{level: low, to: extreme_high, after: 1h}]}}",
            "groups.g.demotions[0].to",
            "extreme_high",
            "below low",
        ),
        (
            "groups: {g: {demotions: [{level: auto, to: low, after: 1h}]}}",
            "groups.g.demotions[0].level",
            "auto",
            "known here",
        ),
        (
            "groups: {g: {demotions: [{level: high, to: low}]}}",
            "groups.g.demotions[0].after",
            "",
            "give it",
        ),
        (
            (
                "groups: {g: {demotions: [{level: high, to: low, after: 1h},"
                " {level: high, to: idle, after: 2h}]}}"
            ),
            "groups.g.demotions[1].level",
            "high",
            "keep one",
        ),
        ("a: 1\na: 2", "line 2", "", "keep one of them"),
        ("groups: &x {}\nother: *x", "line 2", "", "write the value out"),
        ("groups: {\n a: ]\n}", "line 2", "", "correct that line"),
        ("[" * 5000, "line 1", "", "see the examples"),
    ],
)
def test_a_fault_names_path_value_and_fix(text: str, field: str, value: str, fix: str) -> None:
    found = parse(text).errors
    assert [each.field for each in found] == [field], found
    assert found[0].value == value
    assert fix in found[0].fix
    assert found[0].message


def test_the_disciplines_are_those_that_the_scheduler_has() -> None:
    assert set(DISCIPLINES) - set(POLICIES) == {"srpt", "roundrobin"}
    assert set(POLICIES) - set(DISCIPLINES) == set()


def clusters(*texts: str) -> str:
    return "virtual_clusters: [" + ", ".join(f"{{{text}}}" for text in texts) + "]"


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        (clusters("nodes: 1"), "[0].name", "is missing"),
        (clusters("name: a"), "[0].nodes", "is missing"),
        (clusters("name: a, nodes: -1"), "[0].nodes", "out of range"),
        (clusters("name: a, nodes: 1", "name: a, nodes: 2"), "[1].name", "the name of two"),
        (clusters("name: a, nodes: 1, parent: b"), "[0].parent", "no virtual cluster"),
        (clusters("name: a, nodes: 1, parent: a"), "[0].parent", "cycle of parents: a > a"),
        (
            clusters("name: a, nodes: 1, teams: [t]", "name: b, nodes: 1, teams: [t]"),
            "[1].teams",
            "in two virtual clusters",
        ),
        (
            clusters("name: a, nodes: 1, users: [u]", "name: b, nodes: 1, users: [x, u]"),
            "[1].users",
            "in two virtual clusters",
        ),
        (clusters("name: a, nodes: 1, users: [u, u]"), "[0].users[1]", "there twice"),
        (clusters("name: a, nodes: 2, nodes_max: 1"), "[0].nodes_max", "less than the guaranteed"),
        (
            clusters("name: a, nodes: 2", "name: b, nodes: 2.5, parent: a, users: [u]"),
            "[0].nodes",
            "less than its parts are guaranteed, 2.5",
        ),
        ("virtual_clusters: [null]", "[0].name", "is missing"),
        ("virtual_clusters: [lab]", "[0]", "is not a mapping"),
    ],
)
def test_faults_of_virtual_clusters(text: str, path: str, message: str) -> None:
    found = of_group(text).errors
    assert [each.field for each in found] == [f"groups.g.virtual_clusters{path}"], found
    assert message in found[0].message


def test_a_cycle_is_reported_once_for_each_of_its_members() -> None:
    text = clusters(
        "name: a, nodes: 1, parent: b", "name: b, nodes: 1, parent: c", "name: c, parent: a",
        "name: d, nodes: 1, parent: a",
    )  # fmt: skip
    found = of_group(text).errors
    assert [each.field for each in found] == [
        f"groups.g.virtual_clusters[{number}].parent" for number in range(3)
    ]
    assert found[0].message == "is a cycle of parents: a > b > c > a"


def test_a_tree_has_an_end() -> None:
    line = ["name: c0, nodes: 1"] + [
        f"name: c{number}, parent: c{number - 1}, nodes: 1" for number in range(1, 30)
    ]
    found = of_group(clusters(*line)).errors
    assert found[0].message == "lies too deep"


def test_the_parent_of_a_typo_is_found() -> None:
    text = clusters("name: vision, nodes: 1, users: [u]", "name: b, nodes: 1, parent: vison")
    (error,) = of_group(text).errors
    assert error.fix == "did you mean vision?"


def test_guarantees_stay_within_the_known_nodes() -> None:
    text = clusters("name: a, nodes: 3, users: [u]", "name: b, nodes: 2, users: [v]")
    assert of_group(text).errors == ()
    assert of_group(text, capacity={"g": 5.0}).errors == ()
    (error,) = of_group(text, capacity={"g": 4.0}).errors
    assert (error.field, error.value) == ("groups.g.virtual_clusters", "5")
    assert "guarantees 5 nodes of 4" in error.message
    # A part's guarantee is within its parent's and is not counted again.
    nested = clusters("name: a, nodes: 3", "name: b, nodes: 3, parent: a, users: [v]")
    assert of_group(nested, capacity={"g": 3.0}).errors == ()


def test_a_parent_without_nodes_guarantees_what_its_parts_do() -> None:
    text = clusters(
        "name: top", "name: mid, parent: top", "name: a, nodes: 1.5, parent: mid, users: [a]",
        "name: b, nodes: 2, parent: top, users: [b]",
    )  # fmt: skip
    found = of_group(text)
    assert found.errors == ()
    nodes = {each.name: each.nodes for each in found.policies[0].virtual_clusters}
    assert nodes == {"top": 3.5, "mid": 1.5, "a": 1.5, "b": 2.0}


def test_unknown_groups_and_empty_clusters_are_accepted_with_a_warning() -> None:
    found = parse("groups: {nowhere: {policy: fifo}}", capacity={"g": 1.0})
    assert [each.field for each in found.warnings] == ["groups.nowhere"]
    assert found.errors == ()
    lonely = of_group(clusters("name: a, nodes: 1"))
    assert [each.message for each in lonely.warnings] == ["has nobody in it"]
    assert lonely.errors == ()


def test_all_errors_are_reported_up_to_a_limit() -> None:
    text = "groups:\n" + "".join(f"  g{number}: {{policy: x}}\n" for number in range(300))
    found = parse(text)
    assert len(found.errors) == PROBLEMS_MAX
    assert found.errors_more == 300 - PROBLEMS_MAX
    assert len(errors("groups: {a: {policy: x}, b: {policy: y, protected: z}}")) == 3


def test_a_document_has_a_limit() -> None:
    (error,) = parse("# " + "x" * 300_000).errors
    assert "bytes" in error.message
    assert parse("# " + "x" * 2000 + "\ngroups: {g: {}}", bytes_max=1000).errors != ()
    many = "groups: {" + ", ".join(f"g{number}: {{}}" for number in range(1001)) + "}"
    assert [each.field for each in parse(many).errors] == ["groups"]


def test_a_file_is_loaded_or_refused_with_all_its_errors(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(FULL)
    assert [(each.group, each.from_file) for each in load_file(path)] == [
        ("training", True),
        ("dev", True),
    ]
    path.write_text("groups: {a: {policy: x}, b: {nodes: 3}}")
    with pytest.raises(PolicyFileError) as refused:
        load_file(path)
    assert "groups.a.policy" in str(refused.value)
    assert "groups.b.nodes" in str(refused.value)
    path.write_text("groups: {a: null}")
    with pytest.raises(PolicyFileError, match=r"groups\.a is empty"):
        load_file(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(PolicyFileError, match="cannot be read"):
        load_file(path)
    with pytest.raises(PolicyFileError, match="cannot be read"):
        load_file(tmp_path / "nothing.yaml")


NAMES = st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True)
SECONDS = st.one_of(
    st.integers(1, 500_000).map(float), st.floats(1.0, 80_000.0, allow_subnormal=False)
)
WEIGHTS = st.dictionaries(NAMES, st.floats(0.001, 1000.0), max_size=3)


@st.composite
def trees(draw: st.DrawFn) -> tuple[VirtualCluster, ...]:
    """Some virtual clusters; a parent is guaranteed at least what its parts are."""
    names = draw(st.lists(NAMES, max_size=5, unique=True))
    parents = [draw(st.sampled_from(["", *names[:place]])) for place in range(len(names))]
    nodes: dict[str, float] = {}
    for name, _ in reversed(list(zip(names, parents, strict=True))):
        inside = sum(
            nodes[part] for part, above in zip(names, parents, strict=True) if above == name
        )
        nodes[name] = inside + draw(st.integers(0, 8)) / 2
    return tuple(
        VirtualCluster(
            name,
            nodes[name],
            parent,
            teams=(f"t{place}",) if draw(st.booleans()) else (),
            users=(f"u{place}",) if draw(st.booleans()) else (),
            nodes_max=draw(st.one_of(st.none(), st.just(nodes[name] + 1.5))),
        )
        for place, (name, parent) in enumerate(zip(names, parents, strict=True))
    )


@st.composite
def policies(draw: st.DrawFn) -> GroupPolicy:
    levels = [Priority.EXTREME_HIGH, Priority.HIGH, Priority.NORMAL, Priority.LOW]
    first = draw(SECONDS)
    return GroupPolicy(
        group="g",
        policy=draw(st.sampled_from(POLICIES)),
        timeshare=Timeshare(
            grant_after_seconds=draw(SECONDS),
            slice_share=draw(st.floats(0.0, 100.0)),
            use_limits=draw(st.booleans()),
        ),
        rotation=Rotation(first, first + draw(SECONDS), draw(SECONDS)),
        demotions=tuple(
            Demotion(above, below, draw(SECONDS))
            for above, below in pairwise(levels)
            if draw(st.booleans())
        ),
        shares=Shares(draw(WEIGHTS), draw(WEIGHTS)),
        virtual_clusters=draw(trees()),
        protected_seconds=draw(st.one_of(st.none(), SECONDS)),
        topology=tuple(draw(st.lists(NAMES, max_size=3, unique=True))),
        cross_zone_gangs_max=draw(st.integers(0, 9)),
    )


@settings(max_examples=60)
@given(policies())
def test_a_policy_document_parses_to_the_same_policy(policy: GroupPolicy) -> None:
    found = parse(json.dumps(document_of(policy)), group="g", capacity={"g": 1000.0})
    assert found.errors == ()
    assert found.policies == (policy,)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 10**30), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(
                st.sampled_from(
                    ["groups", "virtual_clusters", "name", "parent", "nodes", "shares", "users"]
                ),
                st.text(max_size=4),
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=20,
)


@settings(max_examples=150)
@given(VALUES)
def test_nonsense_is_refused_and_breaks_nothing(value: object) -> None:
    whole = parse(json.dumps(value))
    one = parse(json.dumps(value), group="g")
    for found in (whole, one):
        for error in (*found.errors, *found.warnings):
            assert error.field
            assert error.message
            assert error.fix
            assert json.loads(error.model_dump_json())


@settings(max_examples=60)
@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    found = parse(text)
    assert found.errors or found.policies or found.removed or "groups" in text
