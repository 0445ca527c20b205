"""A seeded synthetic workload for tests and demonstrations; no trace of anywhere.

Users are Zipf-distributed, each with a usual size and length; sizes are powers of two up to a
part of the machine, durations lognormal, arrivals a Poisson process with a daily cycle whose rate
fills the cluster to the given load. The same seed gives the same jobs on every machine.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

from services.scheduler.lab.errors import LabError
from services.scheduler.lab.workload import Cluster, Job, LabGroup, Workload

PREFIX = "synthetic:"
JOBS_MAX = 5_000_000
DAY_S = 86_400.0
DURATION_S_LEAST = 10.0
DURATION_S_MOST = 7 * DAY_S


@dataclass(frozen=True, slots=True)
class Shape:
    """The parameters of the synthetic workload."""

    users: int = 60
    teams: int = 6
    # Offered work, as a part of the cluster's capacity.
    load: float = 0.9
    median_s: float = 1800.0
    # Standard deviation of the logarithm of durations: between users, and within one user's.
    spread: float = 1.6
    own_spread: float = 0.9
    zipf: float = 1.1
    # The largest gang, as a part of the group's nodes.
    size_most: float = 0.5
    # Chance of the next larger power of two.
    size_step: float = 0.52
    # How far the rate by day is above the mean, and by night below it.
    daily: float = 0.6


SHAPE = Shape()


def parse_name(name: str) -> tuple[int, int | None] | None:
    """Jobs and seed of ``synthetic:JOBS[:SEED]``; None for any other name. Raises LabError."""
    if not name.startswith(PREFIX):
        return None
    words = name.removeprefix(PREFIX).split(":")
    if not 1 <= len(words) <= 2 or not all(word.isdecimal() for word in words):  # noqa: PLR2004 - jobs and seed
        raise LabError(f"it is {name!r}", where="TRACE", fix="write synthetic:JOBS or :JOBS:SEED")
    jobs = int(words[0])
    if not 1 <= jobs <= JOBS_MAX:
        raise LabError(f"{jobs} jobs", where="TRACE", fix=f"ask for 1 to {JOBS_MAX}")
    return jobs, int(words[1]) if len(words) > 1 else None


def generate(cluster: Cluster, jobs: int, seed: int, shape: Shape = SHAPE) -> Workload:
    """Generate this number of jobs for the cluster's first group."""
    if not cluster.groups or not cluster.groups[0].nodes:
        raise LabError("the cluster has no nodes", where="TRACE", fix="--nodes N")
    group = cluster.groups[0]
    source = random.Random(seed)  # noqa: S311 - a repeatable workload, nothing secret
    people = _people(source, group, shape)
    weights = list(accumulate(1.0 / (rank + 1) ** shape.zipf for rank in range(shape.users)))
    drafts = [_draft(source, people, weights, group, shape) for _ in range(jobs)]
    work = sum(nodes * gpus * duration for _, nodes, gpus, duration in drafts)
    capacity = float(len(group.nodes) * max(1, group.gpus_per_node))
    arrivals = _arrivals(source, jobs, work / (capacity * shape.load), shape.daily)
    made = [
        Job(
            number=number,
            submit_s=at,
            duration_s=duration,
            nodes=nodes,
            gpus_per_node=None if gpus >= max(1, group.gpus_per_node) else gpus,
            user=f"u{user:03}",
            team=f"team{user % shape.teams}",
            # People request the next round time, generously.
            requested_s=_asked(source, duration),
            group=group.name,
        )
        for number, (at, (user, nodes, gpus, duration)) in enumerate(
            zip(arrivals, drafts, strict=True)
        )
    ]
    return Workload(f"{PREFIX}{jobs}:{seed}", made, cluster)


def _people(source: random.Random, group: LabGroup, shape: Shape) -> list[tuple[float, int]]:
    """Each user's usual logarithm of a duration, and usual size as a power of two of GPUs."""
    gpus = len(group.nodes) * max(1, group.gpus_per_node)
    most = max(0, int(math.log2(max(1.0, gpus * shape.size_most))))
    found: list[tuple[float, int]] = []
    for _ in range(shape.users):
        usual = source.gauss(math.log(shape.median_s), shape.spread)
        power = 0
        while power < most and source.random() < shape.size_step:
            power += 1
        found.append((usual, power))
    return found


def _draft(
    source: random.Random,
    people: list[tuple[float, int]],
    weights: list[float],
    group: LabGroup,
    shape: Shape,
) -> tuple[int, int, int, float]:
    """User, nodes, GPUs on each and duration of one job."""
    user = bisect_left(weights, source.random() * weights[-1])
    usual, power = people[user]
    each = max(1, group.gpus_per_node)
    most = len(group.nodes) * each * shape.size_most
    gpus = 2 ** max(0, power + source.choice((-1, 0, 0, 1)))
    gpus = max(1, min(gpus, int(most)))
    duration = math.exp(source.gauss(usual, shape.own_spread))
    duration = round(min(max(duration, DURATION_S_LEAST), DURATION_S_MOST))
    nodes = math.ceil(gpus / each)
    return user, nodes, min(gpus, each) if nodes == 1 else each, float(duration)


def _arrivals(source: random.Random, jobs: int, span_s: float, daily: float) -> list[float]:
    """Times of a Poisson process over a span, the first at 0, thinned by the time of day."""
    rate = jobs / max(span_s, 1.0)
    peak = rate * (1.0 + daily)
    found: list[float] = []
    now = 0.0
    while len(found) < jobs:
        now += source.expovariate(peak)
        busy = 1.0 + daily * math.sin(2.0 * math.pi * (now / DAY_S - 0.25))
        if source.random() * (1.0 + daily) <= busy:
            found.append(round(now, 3))
    return [at - found[0] for at in found]


def _asked(source: random.Random, duration: float) -> float:
    generous = duration * source.choice((1.1, 1.5, 2.0, 4.0))
    return max(300.0, math.ceil(generous / 300.0) * 300.0)
