"""The newest rows: which are kept, and which are evicted."""

from __future__ import annotations

from libs.store.recent import Recent
from tests.libs.store.example import TABLES, Job, Pair, a_job


def test_only_the_named_tables_and_the_newest_rows_are_kept() -> None:
    jobs, pairs = TABLES.shape(Job), TABLES.shape(Pair)
    recent = Recent([jobs], rows_max=2)
    one, two, three = (a_job(f"j{number}") for number in range(1, 4))
    recent.land({jobs: {"j1": one, "j2": two}, pairs: {("a", 1): Pair("a", 1)}})
    assert not recent.of(pairs)
    # Written again it is the newest.
    recent.land({jobs: {"j1": one}})
    recent.land({jobs: {"j3": three}})
    assert recent.of(jobs) == {"j1": one, "j3": three}
    recent.land({jobs: {"j1": None}})
    assert recent.of(jobs) == {"j1": None, "j3": three}
    recent.clear()
    assert not recent.of(jobs)
