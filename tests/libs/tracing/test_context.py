"""Where the present work hangs, and what strangers may write into the header."""

from __future__ import annotations

import pytest
from opentelemetry.context import attach, detach

from libs.tracing import context
from libs.tracing.spans import reserved

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


def test_a_traceparent_is_read_and_written_as_it_was() -> None:
    span = context.read(GOOD)
    assert span is not None
    assert context.text_of(span) == GOOD
    assert context.trace_ids(span) == {"trace_id": TRACE, "span_id": SPAN}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"{GOOD}-more",
        # Of a later version, which may be longer, and is not that long.
        f"01-{TRACE}-{SPAN}-01-{'x' * 1_000_000}",
        f"{GOOD}\r\nauthorization: x",
        "00-" + "a" * 1_000_000,
        GOOD + "\x00",
        "é" * 55,
    ],
)
def test_a_traceparent_that_is_malformed_or_too_long_counts_as_none(text: str) -> None:
    assert context.read(text) is None
    assert reserved(text, "run 1") == ""
    before = context.current()
    context.enter(text)
    assert context.current() == before


def test_work_is_outside_of_any_trace_until_it_enters_one() -> None:
    assert context.current() == ""
    span = context.read(GOOD)
    assert span is not None
    with context.entered(context.below(span)):
        assert context.current() == GOOD
    assert context.current() == ""
    token = attach(context.get_current())
    context.enter(GOOD)
    assert context.current() == GOOD
    detach(token)


def test_a_reserved_span_has_the_same_id_each_time_and_another_for_each_name_and_parent() -> None:
    first = reserved(GOOD, "run 1")
    assert first == reserved(GOOD, "run 1")
    assert first.split("-")[1] == TRACE
    others = {reserved(GOOD, "run 2"), reserved(f"00-{TRACE}-{'1' * 16}-01", "run 1"), GOOD}
    assert len(others | {first}) == 4
