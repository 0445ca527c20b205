"""``logs`` and ``events``."""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from shiftwork.cli import follow, ids, render

from tests.libs.sdk.cli.server import CliServer, a_task, an_exit

if TYPE_CHECKING:
    from tests.libs.sdk.cli.conftest import Shiftwork

pytestmark = pytest.mark.server


@pytest.fixture
def written(server: CliServer) -> CliServer:
    server.tasks["ta"] = a_task("ta", state="succeeded", exit=an_exit("ok", 0))
    server.output = {(1, 0): b"one\ntwo\n", (2, 0): b"three\nfour"}
    return server


def test_logs_are_all_attempts_as_they_are(shiftwork: Shiftwork, written: CliServer) -> None:
    del written
    assert shiftwork("logs", "ta").out == "one\ntwo\nthree\nfour"
    assert shiftwork("logs", "ta", "--attempt", "1").out == "one\ntwo\n"
    assert shiftwork("logs", "ta", "--rank", "1").out == ""
    assert "no output matches" in shiftwork("logs", "ta", "--rank", "1").err


def test_long_output_is_read_in_ranges(shiftwork: Shiftwork, written: CliServer) -> None:
    text = "".join(f"line {number} \u2713\n" for number in range(20_000))
    written.output = {(1, 0): text.encode()}
    assert shiftwork("logs", "ta").out == text
    assert sum("offset" in one.query for one in written.seen) > 3
    found = shiftwork("logs", "ta", "--search", "line 1999[0-9] ").out.splitlines()
    assert found == [f"line {number} \u2713" for number in range(19_990, 20_000)]


def test_tail_is_of_the_last_attempt(shiftwork: Shiftwork, written: CliServer) -> None:
    del written
    assert shiftwork("logs", "ta", "--tail", "1").out == "four"
    assert shiftwork("logs", "ta", "--tail", "0").out == ""


def test_a_followed_tail_is_of_the_last_attempt_too(
    shiftwork: Shiftwork, written: CliServer
) -> None:
    # The server of these tests leaves the cutting of a stream to others.
    assert shiftwork("logs", "ta", "-f", "--tail", "1").out == "three\nfour"
    assert written.seen[-1].query["tail"] == "1"
    assert shiftwork("logs", "ta", "-f").out == "one\ntwo\nthree\nfour"
    assert shiftwork("logs", "ta", "-f", "--tail", "0").out == ""


def test_since_is_a_time_or_a_duration(shiftwork: Shiftwork, written: CliServer) -> None:
    shiftwork("logs", "ta", "--since", "2026-11-21T12:00:00+02:00", "--attempt", "1")
    assert written.seen[-1].query["since"] == "2026-11-21T10:00:00Z"
    assert shiftwork("logs", "ta", "--since", "15m").code == 0
    assert shiftwork("logs", "ta", "--since", "yesterday").code == 2
    assert shiftwork("logs", "ta", "--search", "(").code == 2


def test_logs_in_json(shiftwork: Shiftwork, written: CliServer) -> None:
    del written
    lines = shiftwork("logs", "ta", "--json").out.splitlines()
    assert [json.loads(line) for line in lines][2] == {
        "attempt": 2,
        "rank": 0,
        "role": "worker",
        "text": "three",
    }


def test_lines_are_prefixed_with_their_rank(shiftwork: Shiftwork, written: CliServer) -> None:
    written.tasks["ta"]["nodes"] = 2
    written.output = {(1, 0): b"a\n", (1, 1): b"b\n"}
    assert shiftwork("logs", "ta").out == "[0] a\n[1] b\n"
    assert shiftwork("logs", "ta", "--rank", "1").out == "b\n"


def test_following_goes_on_to_the_end(shiftwork: Shiftwork, written: CliServer) -> None:
    written.tasks["ta"]["state"] = "running"

    def more() -> None:
        written.write(2, 0, b"th\nfive\n")
        written.tasks["ta"]["state"] = "failed"

    threading.Timer(0.1, more).start()
    assert shiftwork("logs", "ta", "-f").out == "one\ntwo\nthree\nfourth\nfive\n"


def pieces(*texts: dict[str, object]) -> list[dict[str, object]]:
    return [{"attempt": 1, "rank": 0, "role": "w", **text} for text in texts]


def test_off_a_terminal_a_bar_is_noted_now_and_then(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard output gets how it ended, and the beginning of a line at once."""
    now = [0.0]
    monkeypatch.setattr(follow.time, "monotonic", lambda: now[0])
    render.configure(form="", quiet=False, verbose=False)
    screen = follow.Screen(render.Progress(), follow.Printer())
    screen.take(pieces({"offset": 0, "text": "load"})[0])
    assert capfdbinary.readouterr().out == b"load"
    screen.take(pieces({"offset": 4, "text": "ing\n"})[0])
    assert capfdbinary.readouterr().out == b"ing\n"
    for number in range(1000):
        now[0] += 0.05
        screen.take(pieces({"offset": 8, "line": f"\r{number}\x1b]0;x\x07"})[0])
    screen.take(pieces({"offset": 8, "text": "\r1000\nend"})[0])
    screen.end()
    captured = capfdbinary.readouterr()
    assert captured.out == b"1000\nend\n"
    noted = captured.err.decode().splitlines()
    assert 3 <= len(noted) <= 5
    assert noted[0].endswith("\\x1b]0;x\\x07")


def test_on_a_terminal_bars_are_drawn_without_their_control_sequences(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(render, "is_terminal", lambda stream: stream is sys.stderr)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    render.configure(form="", quiet=False, verbose=False)
    with render.Progress() as progress:
        screen = follow.Screen(progress, follow.Printer(ranks=True))
        screen.take(pieces({"offset": 0, "line": "\r\x1b[32m10%\x1b[0m\x1b]0;pwned\x07\x9b2J"})[0])
        screen.take(pieces({"rank": 1, "offset": 0, "text": "prompt> "})[0])
        assert progress.drawn == ["[0] 10%\\x1b]0;pwned\\x07\\x9b2J", "[1] prompt> "]
        screen.take(pieces({"offset": 0, "text": "\r100%\n"})[0])
        assert progress.drawn == ["[1] prompt> "]
        screen.end()
        assert progress.drawn == []
    captured = capfdbinary.readouterr()
    assert captured.out == b"[0] 100%\n[1] prompt> \n"
    assert b"\x1b]0" not in captured.err
    assert b"10%" in captured.err


def test_following_filters(shiftwork: Shiftwork, written: CliServer) -> None:
    done = shiftwork("logs", "ta", "-f", "--search", "^t")
    assert (done.out, done.err) == ("two\nthree\n", "")
    # Of a task that lives, a line that matches may come late, or never.
    running = (200, a_task("ta", state="running"))
    written.first["GET", "/v1/tasks/ta"] = [running, running]
    done = shiftwork("logs", "ta", "-f", "--search", "^t")
    assert done.out == "two\nthree\n"
    assert done.err == "lines that match '^t' are shown as they come; Ctrl-C ends this\n"
    assert shiftwork("logs", "ta", "-f", "--search", "^t", "-q").err == ""


def at(seconds: float) -> str:
    """The time in the format of the command's output."""
    return f"2026-11-21T10:00:{seconds:06.3f}Z"


@pytest.fixture
def dated(written: CliServer) -> CliServer:
    """Two attempts; the last line of the first is written in two parts."""
    written.output = {(1, 0): b"one\ntwo\nlo" + b"ng\n", (2, 0): b"three\n\r 10%\r 20%\nfour"}
    written.written = {
        (1, 0): {0: 0, 4: 0.1234567, 8: 1, 10: 7},
        (2, 0): {0: 20, 6: 21, 11: 22, 16: 25},
    }
    return written


LINES = [
    f"{at(0)} one",
    f"{at(0.123)} two",
    f"{at(1)} long",
    f"{at(20)} three",
    f"{at(22)}  20%",
    f"{at(25)} four",
]


@pytest.mark.parametrize("option", ["-t", "--timestamps"])
@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_each_line_has_its_time(
    shiftwork: Shiftwork, dated: CliServer, option: str, follow: tuple[str, ...]
) -> None:
    """That is when its first byte was; of a line that was rewritten, that of its last state."""
    del dated
    assert shiftwork("logs", "ta", option, *follow).out.splitlines() == LINES


def test_times_go_with_the_other_options(shiftwork: Shiftwork, dated: CliServer) -> None:
    assert shiftwork("logs", "ta", "-t", "--tail", "1").out == f"{at(25)} four\n"
    assert shiftwork("logs", "ta", "-t", "--attempt", "1").out.splitlines() == LINES[:3]
    assert shiftwork("logs", "ta", "-t", "--search", "o$").out == f"{at(0.123)} [1.0] two\n"
    assert shiftwork("logs", "ta", "-t", "--rank", "0").out.splitlines() == LINES
    shiftwork("logs", "ta", "-t", "--since", "2026-11-21T12:00:00+02:00", "--attempt", "1")
    assert dated.seen[-1].query["since"] == "2026-11-21T10:00:00Z"
    # What is not asked for costs nothing.
    shiftwork("logs", "ta")
    assert "timestamps" not in dated.seen[-1].query


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_times_in_json(shiftwork: Shiftwork, dated: CliServer, follow: tuple[str, ...]) -> None:
    del dated
    lines = shiftwork("logs", "ta", "-t", "--json", *follow).out.splitlines()
    assert json.loads(lines[1]) == {
        "attempt": 1,
        "rank": 0,
        "role": "worker",
        "at": "2026-11-21T10:00:00.123457Z",
        "text": "two",
    }


def test_with_times_ranks_are_merged_by_time(shiftwork: Shiftwork, written: CliServer) -> None:
    written.tasks["ta"]["nodes"] = 2
    written.output = {(1, 0): b"a\nc\n", (1, 1): b"b\nd\n", (2, 0): b"e\n"}
    written.written = {(1, 0): {0: 1, 2: 3.5}, (1, 1): {0: 2, 2: 4}, (2, 0): {0: 0}}
    assert shiftwork("logs", "ta", "-t").out.splitlines() == [
        f"{at(1)} [0] a",
        f"{at(2)} [1] b",
        f"{at(3.5)} [0] c",
        f"{at(4)} [1] d",
        f"{at(0)} [0] e",
    ]


def test_times_of_long_output_are_read_in_ranges(shiftwork: Shiftwork, written: CliServer) -> None:
    text = "".join(f"line {number:05d}\n" for number in range(20_000))
    written.output = {(1, 0): text.encode()}
    written.written = {(1, 0): {11 * number: number / 1000 for number in range(0, 20_000, 10)}}
    found = shiftwork("logs", "ta", "-t").out.splitlines()
    assert found == [f"{at(n // 10 / 100)} line {n:05d}" for n in range(20_000)]


def test_approximate_and_unknown_times_are_marked(shiftwork: Shiftwork, written: CliServer) -> None:
    written.output = {(1, 0): b"old\nold\nnew\n", (2, 0): b"nothing known\n"}
    written.written = {(1, 0): {0: 1, 8: 9}}
    written.exact_from = 8
    done = shiftwork("logs", "ta", "-t", "--attempt", "1")
    assert done.out.splitlines() == [f"~{at(1)} old", f"~{at(1)} old", f"{at(9)} new"]
    assert "times with ~ are approximate" in done.err
    lines = shiftwork("logs", "ta", "-t", "--json", "--attempt", "1").out.splitlines()
    assert [json.loads(line).get("approximate") for line in lines] == [True, True, None]
    assert shiftwork("logs", "ta", "-t", "--attempt", "2").out == "- nothing known\n"


def test_the_beginning_of_a_line_is_written_behind_its_time(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    render.configure(form="", quiet=False, verbose=False)
    screen = follow.Screen(render.Progress(), follow.Printer(times=True))

    def take(offset: int, text: str, seconds: float) -> bytes:
        stamps = [[offset, f"2026-11-21T10:00:{seconds:09.6f}Z"]]
        screen.take(pieces({"offset": offset, "text": text, "timestamps": stamps})[0])
        return capfdbinary.readouterr().out

    assert take(0, "load", 1) == b"2026-11-21T10:00:01.000Z load"
    assert take(4, "ing", 2) == b"ing"
    assert take(7, "\nnext\n", 3) == b"\n2026-11-21T10:00:03.000Z next\n"


def test_missing_output_is_reported(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks["ta"] = a_task("ta")
    done = shiftwork("logs", "ta")
    assert (done.code, done.out) == (0, "")
    assert "there is no output" in done.err


def test_an_empty_result_gives_the_reason(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks["ta"] = a_task("ta", state="succeeded")
    server.output[1, 0] = b"step 1\n"
    done = shiftwork("logs", "ta", "--search", "nomatch")
    assert (done.code, done.out, done.err) == (0, "", "no output that matches 'nomatch'\n")
    assert shiftwork("logs", "ta", "--search", "nomatch", "-q").err == ""
    assert shiftwork("logs", "ta", "--search", "step").err == ""
    assert shiftwork("logs", "ta", "--tail", "0").err == ""
    server.output[1, 0] = b""
    for options in ((), ("-t",)):
        done = shiftwork("logs", "ta", "--since", "2099-01-01T00:00:00Z", *options)
        assert (done.out, done.err) == ("", "no output since 2099-01-01T00:00:00Z\n")
    assert shiftwork("logs", "ta").err == "there is no output\n"


@pytest.fixture
def happened(server: CliServer) -> CliServer:
    server.tasks["ta"] = a_task("ta")
    server.happen("ta", "task.submitted", owner="ada", attempt=None)
    server.happen("tb", "run.exited", exit={"kind": "ok", "detail": ""})
    server.happen("ta", "run.started", placements=[{"node_id": "n1"}])
    server.happen("", "node.changed", node_id="n1", node={"ready": False}, attempt=None)
    server.happen("", "brand.new_fact", attempt=None)
    return server


def test_events_of_one_task_and_of_all(shiftwork: Shiftwork, happened: CliServer) -> None:
    of_task = [" ".join(line.split()) for line in shiftwork("events", "ta").out.splitlines()]
    assert of_task == [
        "POSITION TIME ATTEMPT EVENT",
        "1 2026-11-21 10:00:00.123Z submitted by ada",
        "3 2026-11-21 10:00:00.123Z 1 started on n1",
    ]
    everything = shiftwork("events").out.splitlines()
    assert happened.seen[-1].query["from"] == "-100"
    assert [" ".join(line.split()) for line in everything[2:]] == [
        "2 2026-11-21 10:00:00.123Z tb.1 the program ended successfully",
        "3 2026-11-21 10:00:00.123Z ta.1 started on n1",
        "4 2026-11-21 10:00:00.123Z node n1 lost",
        "5 2026-11-21 10:00:00.123Z brand new fact",
    ]
    assert len(shiftwork("events", "--from", "3").out.splitlines()) == 3
    assert len(shiftwork("events", "--json").json["items"]) == 5
    filters = {"owner": "ann", "team": "vision", "group": "a100"}
    shiftwork("events", *(word for each in filters for word in (f"--{each}", filters[each])))
    assert filters.items() <= happened.seen[-1].query.items()


def test_events_are_followed_until_interrupted(
    shiftwork: Shiftwork, happened: CliServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shiftwork.cli import events

    shown: list[dict[str, Any]] = []
    show = events._show

    def until_the_sixth(event: dict[str, Any], names: ids.Names, *, of_task: bool) -> None:
        show(event, names, of_task=of_task)
        shown.append(event)
        if len(shown) == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(events, "_show", until_the_sixth)
    happened.cuts = 2
    threading.Timer(0.1, lambda: happened.happen("ta", "run.exited", exit={"kind": "ok"})).start()
    done = shiftwork("events", "-f", "--json", "--from", "0")
    assert done.code == 130
    records = [json.loads(line) for line in done.out.splitlines()]
    assert [record["position"] for record in records] == [1, 2, 3, 4, 5, 6]


def test_found_lines_have_their_place_and_the_lines_around_them(
    shiftwork: Shiftwork, written: CliServer
) -> None:
    written.output = {(1, 0): b"a\nb\n", (2, 0): b"a\n"}
    # Pages of the server are joined, and lines of several attempts have the attempt's number.
    assert shiftwork("logs", "ta", "--search", ".").out == "[1.0] a\n[1.0] b\n[2.0] a\n"
    assert shiftwork("logs", "ta", "--search", "b", "--attempt", "1").out == "b\n"
    record = json.loads(shiftwork("--json", "logs", "ta", "--search", "b").out)
    place = {"attempt": 1, "rank": 0, "role": "worker", "offset": 2, "at": None, "text": "b"}
    assert record == place
    shiftwork("logs", "ta", "--search", "b", "-i", "--text", "-B", "1", "-C", "2", "-t")
    sent = written.seen[-1].query
    names = ("literal", "ignore_case", "lines_before", "lines_after", "order")
    assert [sent[name] for name in names] == ["1", "1", "2", "2", "time"]


def test_lines_around_several_matches_come_once(
    shiftwork: Shiftwork, written: CliServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.output = {(1, 0): b"a\n"}
    place: dict[str, Any] = {"attempt": 1, "rank": 0, "role": "worker", "at": None}
    lines = [{**place, "offset": 2 * number, "text": str(number)} for number in range(9)]

    def page(*_: object) -> object:
        found = [
            {**lines[1], "lines_before": [lines[0]], "lines_after": [lines[2]]},
            {**lines[3], "lines_before": [lines[2]], "lines_after": [lines[4]]},
            {**lines[8], "lines_before": [lines[7]]},
        ]
        gone = {"attempt": 1, "rank": 1, "problem": "gone"}
        rest = {"more": False, "searched_bytes": 1, "left_bytes": 0}
        return {
            "lines": found,
            **rest,
            "unreadable": [gone],
        }

    monkeypatch.setattr("shiftwork.cli.search.Search._page", page)
    done = shiftwork("logs", "ta", "--search", "x", "-C", "1")
    assert done.out == "0\n1\n2\n3\n4\n--\n7\n8\n"
    assert "rank 1 of attempt 1 was not searched: gone" in done.err


def test_the_end_of_a_range(shiftwork: Shiftwork, written: CliServer) -> None:
    written.output = {(2, 0): b"a\nb\n"}
    shiftwork("logs", "ta", "--before", "4", "--tail", "1", "--until", "2026-11-21T12:00:00Z")
    sent = written.seen[-1].query
    assert (sent["before"], sent["tail"], sent["until"]) == ("4", "1", "2026-11-21T12:00:00Z")
    assert shiftwork("logs", "ta", "--after", "2").out == "b\n"
    written.output[2, 1] = b"c\n"
    assert "--rank" in shiftwork("logs", "ta", "--after", "2").err
    assert shiftwork("logs", "ta", "--after", "2", "--rank", "1").out == ""
    for options in (
        ("-f", "--until", "1m"),
        ("-f", "--before", "2"),
        ("--after", "2", "--tail", "1"),
        ("--after", "2", "--since", "1m"),
        ("-C", "1"),
        ("-f", "--search", "x", "-A", "1"),
        ("-i",),
    ):
        assert shiftwork("logs", "ta", *options).code == 2, options
