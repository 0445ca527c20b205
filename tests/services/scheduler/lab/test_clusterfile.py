from __future__ import annotations

from pathlib import Path

import pytest

from libs.contracts.messages import Priority, Unit
from services.scheduler.lab import cluster_file
from services.scheduler.lab.cluster_file import parse, read_quotas
from services.scheduler.lab.errors import LabError
from services.scheduler.lab.workload import Cluster, Job, Workload, private_partitions, uniform

FILE = """\
groups:
  default:
    nodes:
      - {count: 6, gpus: 8, labels: {zone: a, leaf: 1}, prefix: a}
      - {count: 4, gpus: 4, labels: {zone: b}, prefix: b}
    virtual_clusters:
      - {name: research, nodes: 6}
      - {name: vision, nodes: 4, parent: research, teams: [vision, robots]}
      - {name: speech, nodes: 2.5, users: [eve]}
    shares: {teams: {vision: 2}}
  cpu:
    nodes: [{count: 2, gpus: 0}]
quotas:
  - {group: default, user: alice, priority: high, gpus: 16}
  - {team: vision, nodes: 3}
"""


def test_a_cluster_file() -> None:
    cluster = parse(FILE, "c.yaml")
    default, cpu = cluster.groups
    assert (cluster.nodes, cluster.gpus_per_node, len(cpu.nodes)) == (12, 8, 2)
    assert [node.name for node in default.nodes][5:8] == ["a6", "b1", "b2"]
    assert dict(default.nodes[0].labels) == {"zone": "a", "leaf": "1"}
    research, vision, speech = default.virtual_clusters
    assert (vision.teams, vision.parent, speech.nodes) == (("vision", "robots"), "research", 2.5)
    assert research.teams == ("research",), (
        "a cluster without users or teams is the trace's vc of that name"
    )
    assert default.policy.shares.of("anybody", "vision") == 2
    first, second = cluster.quotas
    assert (first.user, first.priority, first.unit, first.limit) == (
        "alice",
        Priority.HIGH,
        Unit.GPUS,
        16,
    )
    assert (second.team, second.unit, second.limit) == ("vision", Unit.NODES, 3)


def test_whose_work_counts_where() -> None:
    group = parse(FILE, "c.yaml").groups[0]
    assert group.virtual_cluster_of("bob", "robots") == "vision"
    assert group.virtual_cluster_of("eve", "robots") == "speech", "a user comes before a team"
    assert group.virtual_cluster_of("bob", "sales") == ""


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("shares:", "sharing:", "c.yaml.groups.default.sharing", "is no key"),
        ("gpus: 8,", "gpu: 8,", "c.yaml.groups.default.nodes[0]", "unknown key 'gpu'"),
        ("count: 6", "count: -6", "c.yaml.groups.default.nodes[0].count", "it is -6"),
        ("prefix: b", "prefix: a", "c.yaml.groups.default.nodes", "node a1 is there twice"),
        (
            "prefix: b",
            "prefix: a b",
            "c.yaml.groups.default.nodes[1].prefix",
            "cannot begin the name",
        ),
        (
            "{name: research, nodes: 6}",
            "{name: research, nodes: 6, parent: vision}",
            "virtual_clusters",
            "cycle",
        ),
        ("nodes: 6}", "nodes: 9}", "c.yaml.groups.default.virtual_clusters", "guarantees 11.5"),
        ("nodes: 6}", "nodes: 3}", "virtual_clusters[0].nodes", "less than its parts"),
        ("parent: research", "parent: nobody", "virtual_clusters[1].parent", "no virtual cluster"),
        ("gpus: 16}", "gpus: 65}", "c.yaml.quotas[0].gpus", "it is 65: there are 64 gpus"),
        ("nodes: 3}", "nodes: 3, gpus: 1}", "c.yaml.quotas[1]", "it has two numbers"),
        ("priority: high", "priority: urgent", "c.yaml.quotas[0].priority", "it is 'urgent'"),
        ("group: default", "group: other", "c.yaml.quotas[0].group", "it is 'other'"),
        ("    nodes: [{count: 2, gpus: 0}]", "    {}", "c.yaml.groups.cpu.nodes", "it is missing"),
        ("groups:", "groups", "c.yaml", "YAML"),
    ],
)
def test_refusals_name_the_path_and_the_fix(old: str, new: str, where: str, what: str) -> None:
    assert old in FILE
    with pytest.raises(LabError) as refused:
        parse(FILE.replace(old, new, 1), "c.yaml")
    assert where in refused.value.where
    assert what in refused.value.what
    assert refused.value.fix


def test_nodes_may_come_from_the_command_line() -> None:
    text = "groups: {default: {virtual_clusters: [{name: v, nodes: 3}]}}"
    assert parse(text, "c.yaml", 4, 2).groups[0].nodes[3].gpus == 2
    with pytest.raises(LabError, match="12 nodes: --nodes is 5"):
        parse(FILE, "c.yaml", 5)


def test_quotas_as_the_api_lists_them(tmp_path: Path) -> None:
    path = tmp_path / "quotas.json"
    path.write_text(
        '{"items": [{"group": null, "user": "bob", "team": null, "priority": "normal", "unit":'
        ' "gpus", "limit": 8, "version": 3, "changed_by": "root", "changed_at": "…"}]}'
    )
    (limit,) = read_quotas(path, parse(FILE, "c.yaml"))
    assert (limit.user, limit.limit, limit.unit, limit.group) == ("bob", 8, Unit.GPUS, "")
    path.write_text("[{user: bob, gpus: 8}, {user: bob, nodes: 1}]")
    with pytest.raises(LabError, match="there twice"):
        read_quotas(path, parse(FILE, "c.yaml"))


def test_private_partitions() -> None:
    text = (
        "groups: {default: {virtual_clusters: [{name: p, nodes: 3.5, teams: [p]},"
        "{name: c, nodes: 2, parent: p}]}}"
    )
    cluster = parse(text, "c.yaml", 8, 8)
    jobs = [
        Job(0, 0.0, 1.0, 1, team="p"),
        Job(1, 1.0, 1.0, 2, team="p"),
        Job(2, 2.0, 1.0, 2, team="c"),
        Job(3, 3.0, 1.0, 1, 4, team="p"),
        Job(4, 4.0, 1.0, 1, team="nobody"),
    ]
    found = private_partitions(Workload("w", jobs, cluster))
    # The parent keeps what its part is not guaranteed: one node and half of another.
    assert [node.gpus for node in found["p"].cluster.groups[0].nodes] == [8, 4]
    assert [(job.number, job.submit_s) for job in found["p"].jobs] == [(0, 0.0), (1, 3.0)]
    assert (found["p"].skipped, found["c"].nodes, len(found["c"].jobs)) == (1, 2, 1)
    assert private_partitions(Workload("w", jobs, Cluster((uniform("default", 8, 8),)))) == {}


def test_the_example_of_the_documentation_is_a_cluster_file() -> None:
    doc = cluster_file.__doc__ or ""
    example = doc.split("::\n", 1)[1].split("\nEach key")[0]
    text = "\n".join(line.removeprefix("    ") for line in example.splitlines())
    assert parse(text, "c.yaml").nodes == 64
