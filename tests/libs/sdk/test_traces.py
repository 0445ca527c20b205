"""A run's checkpoints belong to its trace."""

from __future__ import annotations

import pytest
import shiftwork

from tests.libs.sdk.run_server import RunServer

pytestmark = pytest.mark.server
GOOD = f"00-{'a' * 32}-{'b' * 16}-01"


def test_a_checkpoint_brings_the_span_of_its_run_and_metrics_do_not(
    on_platform: RunServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", GOOD)
    shiftwork.report(loss=1.0)
    shiftwork.checkpoint_saved(1, "/c/1")
    on_platform.wait_for(lambda: len(on_platform.traceparents) >= 2)
    assert set(on_platform.traceparents) == {
        ("/v1/run/checkpoints", GOOD),
        ("/v1/run/metrics", None),
    }


@pytest.mark.parametrize("text", ["", "nonsense", f"{GOOD}\r\nx: y", "0" * 100_000])
def test_a_variable_that_names_no_span_is_not_sent(
    on_platform: RunServer, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("TRACEPARENT", text)
    shiftwork.checkpoint_saved(1, "/c/1")
    assert on_platform.traceparents == [("/v1/run/checkpoints", None)]
