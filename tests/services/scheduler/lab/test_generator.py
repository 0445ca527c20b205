from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from services.scheduler.lab.errors import LabError
from services.scheduler.lab.generator import generate, parse_name
from services.scheduler.lab.workload import Cluster, fits, uniform

CLUSTER = Cluster((uniform("default", 32, 8),))


def test_the_same_seed_gives_the_same_jobs() -> None:
    assert generate(CLUSTER, 200, 7).jobs == generate(CLUSTER, 200, 7).jobs
    assert generate(CLUSTER, 200, 7).jobs != generate(CLUSTER, 200, 8).jobs


def test_the_workload_is_what_it_describes() -> None:
    workload = generate(CLUSTER, 3000, 1)
    jobs = workload.jobs
    assert [job.number for job in jobs] == list(range(3000))
    assert all(a.submit_s <= b.submit_s for a, b in pairwise(jobs))
    assert all(fits(job, CLUSTER.groups[0].nodes) for job in jobs)
    assert all(job.nodes.bit_count() == 1 for job in jobs), "powers of two"
    assert all((job.requested_s or 0) >= job.duration_s for job in jobs)
    offered = sum(workload.share(job) * job.duration_s for job in jobs) / 32 / jobs[-1].submit_s
    assert 0.8 < offered < 1.0
    users = [count for _, count in Counter(job.user for job in jobs).most_common()]
    assert users[0] > 3000 / len(users) * 5, "a few users submit most"


def test_days_are_busier_than_nights() -> None:
    jobs = generate(CLUSTER, 5000, 3).jobs
    hours = Counter(int(job.submit_s % 86_400 // 21_600) for job in jobs[:4000])
    assert hours[1] > 1.3 * hours[3]


def test_names() -> None:
    assert parse_name("synthetic:100") == (100, None)
    assert parse_name("synthetic:100:7") == (100, 7)
    assert parse_name("trace.csv") is None
    for wrong in ("synthetic:", "synthetic:0", "synthetic:x", "synthetic:1:2:3", "synthetic:-1"):
        with pytest.raises(LabError) as refused:
            parse_name(wrong)
        assert refused.value.fix


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_tiny_clusters(nodes: int) -> None:
    cluster = Cluster((uniform("default", nodes, 1),))
    assert all(fits(job, cluster.groups[0].nodes) for job in generate(cluster, 50, 1).jobs)
