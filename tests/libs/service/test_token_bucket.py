from __future__ import annotations

from libs.service.token_bucket import TokenBucket


def test_a_bucket_allows_a_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(burst=2, per_second=0.5)
    assert [bucket.take(100.0) for _ in range(3)] == [True, True, False]
    assert not bucket.allows(101.0)
    assert bucket.allows(102.0)
    assert [bucket.take(102.0) for _ in range(2)] == [True, False]
    # After a long time it is full, not fuller.
    assert [bucket.take(1e6) for _ in range(3)] == [True, True, False]


def test_a_clock_that_is_set_back_adds_nothing_and_blocks_nobody_for_long() -> None:
    bucket = TokenBucket(burst=1, per_second=1.0)
    assert bucket.take(1000.0)
    assert not bucket.take(10.0)
    assert bucket.take(11.0)
