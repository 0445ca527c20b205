from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.launcher.domain.master_ports import PortRange

RANGE = PortRange(20_000, 20_009)


def test_ports_are_chosen_round_robin() -> None:
    assert RANGE.next_free(0, set()) in range(20_000, 20_010)
    assert RANGE.next_free(20_003, set()) == 20_004
    assert RANGE.next_free(20_009, set()) == 20_000
    assert RANGE.next_free(20_003, {20_004, 20_005}) == 20_006


@given(after=st.integers(0, 70_000), taken=st.sets(st.integers(20_000, 20_009)))
def test_the_next_port_is_free_or_none_if_all_are_taken(after: int, taken: set[int]) -> None:
    port = RANGE.next_free(after, taken)
    if len(taken) == 10:
        assert port is None
    else:
        assert port not in taken
        assert port is not None
        assert RANGE.first <= port <= RANGE.last
