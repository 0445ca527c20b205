"""Choices mean the same as options, as a file with comments, and as values of the charts."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from shiftwork.cli.failures import USAGE, Failure

from services.allinone.kubernetes import charts
from services.allinone.kubernetes.choices import ENTRIES, Choices, commented, nested
from services.allinone.kubernetes.preflight import Wants, wants_of

SOME = Choices(
    registry="registry.example.org:5000/team/",
    tag="1.2.3",
    pull_secret=("one", "two"),
    gpu_resource="amd.com/gpu",
    node_selector="pool=a,!old",
    storage_class="fast",
    external_postgres="db.example.org:5433/work",
    postgres_secret="pg",
    ingress="shift.example.org",
    monitoring=True,
)


def test_options_are_values_of_the_charts() -> None:
    assert nested(SOME.values()) == {
        "global": {
            "image": {
                "registry": "registry.example.org:5000/team",
                "tag": "1.2.3",
                "pullSecrets": ["one", "two"],
            },
            "podPolicy": {"gpu_resource": "amd.com/gpu"},
            "database": {"host": "db.example.org", "port": 5433, "name": "work"},
            "secrets": {"postgres": "pg"},
            "monitoring": {"enabled": True},
        },
        "launcher": {"settings": {"kube_node_selector": "pool=a,!old"}},
        "gateway": {"ingress": {"enabled": True, "host": "shift.example.org"}},
        "nats": {"persistence": {"storageClass": "fast"}},
        "postgres": {"enabled": False},
        "log-collector": {"archive": {"storageClass": "fast"}},
    }


@pytest.mark.parametrize(
    "choices",
    [
        SOME,
        Choices(),
        Choices(no_persistence=True, nats_replicas=3, tasks_namespace="jobs"),
        Choices(external_nats="nats://a:4222,nats://b:4222", nats_secret="n", tag="0123"),
    ],
)
def test_the_file_contains_what_is_chosen_and_shows_the_rest_in_comments(choices: Choices) -> None:
    text = commented(choices.values())
    assert (yaml.safe_load(text) or {}) == nested(choices.values())
    for entry in ENTRIES:
        assert f"{entry.path[-1]}:" in text
    # Every line of a comment that is taken out of it is a line of YAML at its place.
    assert all(len(line) <= 110 for line in text.splitlines())


def test_every_example_is_a_value_that_the_charts_know() -> None:
    """Each path stands in a values.yaml, or below a mapping that is free."""
    shown = yaml.safe_load((charts.BESIDE / "shiftwork" / "values.yaml").read_text())
    for entry in ENTRIES:
        top, *rest = entry.path
        at: Any = shown
        if top != "global":
            at = yaml.safe_load((charts.BESIDE / top / "values.yaml").read_text())
        else:
            rest = list(entry.path)
        for name in rest:
            if at == {}:
                break
            assert name in at, "/".join(entry.path)
            at = at[name]


@pytest.mark.parametrize(
    ("choices", "where"),
    [
        (Choices(gpu_resource="gpu"), "--gpu-resource"),
        (Choices(external_postgres="db"), "--postgres-secret"),
        (Choices(external_postgres="postgres://db", postgres_secret="s"), "--external-postgres"),
        (Choices(external_nats="nats://a"), "--nats-secret"),
        (Choices(external_nats="nats://me:secret@a", nats_secret="s"), "--external-nats"),
    ],
)
def test_invalid_or_incomplete_choices_are_wrong_usage(choices: Choices, where: str) -> None:
    with pytest.raises(Failure) as caught:
        choices.values()
    assert (caught.value.code, caught.value.where) == (USAGE, where)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ([], Wants()),
        ([nested(SOME.values())], Wants("amd.com/gpu", storage_class="fast")),
        ([nested(Choices(no_persistence=True).values())], Wants(storage_class=None)),
        (
            [{"nats": {"persistence": {"storageClass": "a"}}}, {"nats": {"enabled": False}}],
            Wants(storage_class=""),
        ),
        (
            [
                {"global": {"tasks": {"namespace": "jobs"}, "podPolicy": {"gpu_resource": "x/y"}}},
                {"global": {"podPolicy": {"gpu_resource": "v/w"}}},
            ],
            Wants("v/w", "jobs"),
        ),
    ],
)
def test_values_list_what_they_require_of_a_cluster(
    documents: list[dict[str, Any]], expected: Wants
) -> None:
    assert wants_of(documents) == expected


def test_values_of_two_services_that_contradict_are_found() -> None:
    kept = {"submit": {"settings": {"tasks_keep_seconds": 401 * 86_400}}}
    (found,) = wants_of([kept]).problems
    assert found.level == "bad"
    assert "scheduler's ended_keep_seconds" in found.what
    enough = {"scheduler": {"settings": {"ended_keep_seconds": 401 * 86_400}}}
    assert wants_of([kept, enough]).problems == ()
    kept = {"submit": {"settings": {"dead_letters_keep_seconds": 46 * 86_400}}}
    (found,) = wants_of([kept]).problems
    assert found.level == "warn"
    assert "scheduler's early_keep_seconds" in found.what
