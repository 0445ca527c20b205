from __future__ import annotations

import itertools
import os
import random
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.log_collector.agent.output import CHUNK_BYTES_MAX, STAMPS_MAX
from services.log_collector.agent.protocol import PodAnswer, PodRead, PodStored
from services.log_collector.agent.segments import FILLER
from services.log_collector.agent.spool import Limits, Spool
from tests.kit.clock import START, FakeClock
from tests.services.log_collector.fake_kubelet import NAMESPACE, Container, Kubelet

MIB = 1 << 20
LIMITS = Limits(bytes_max=1 << 30, keep_seconds=3600.0, settle_seconds=1.0, days_per_hour=0.25)


@dataclass
class Node:
    """A kubelet and an agent's spool that can be restarted, on one disk, with a manual clock."""

    folder: Path
    limits: Limits = LIMITS
    clock: FakeClock = field(default_factory=FakeClock)
    seconds: float = 100.0

    def __post_init__(self) -> None:
        self.kubelet = Kubelet(self.folder / "log")
        self.spool_dir = self.folder / "log" / "shiftwork"
        self.start()

    def start(self) -> None:
        self.spool = Spool(
            self.kubelet.pods_dir,
            self.spool_dir,
            namespace=NAMESPACE,
            container="main",
            limits=self.limits,
            clock=self.clock,
            monotonic=lambda: self.seconds,
        )
        self.spool.load()

    def wait(self, seconds: float) -> None:
        self.seconds += seconds
        self.clock.advance(seconds)

    def ask(self, pod: str = "t-1-0", offset: int = 0, size: int = MIB, **more: Any) -> PodAnswer:
        (answer,) = self.spool.read([PodRead(pod, offset, size, **more)], 1 << 26)
        assert answer is not None
        return answer

    def drain(self, pod: str = "t-1-0", offset: int = 0, size: int = MIB) -> bytes:
        """All that is there, waiting where it is not sure."""
        data = b""
        for _ in range(10_000):
            answer = self.ask(pod, offset + len(data), size, ended=True)
            assert not answer.problem, answer
            data += answer.data
            if answer.unsure and not answer.data:
                self.wait(0.6)
            elif not answer.data:
                return data
        raise AssertionError("no end")

    def links(self) -> list[Path]:
        return sorted(self.spool_dir.rglob("*_*_*.log"))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


# -- bytes


def test_output_is_read_across_rotations(node: Node) -> None:
    container = node.kubelet.create("t-1-0")
    for turn in range(8):
        container.write(b"turn %d\n" % turn * 100 + b"held back")
        node.spool.scan()
        container.rotate()
        node.spool.scan()
    container.end()
    assert node.drain() == bytes(container.output)
    assert len(node.links()) == 9


def test_a_deleted_pods_output_stays_until_it_is_done(node: Node) -> None:
    container = node.kubelet.create("t-1-0")
    container.write(b"last words\n")
    node.spool.scan()
    container.delete()
    node.spool.scan()
    answer = node.ask(ended=True)
    assert (answer.data, answer.complete) == (b"last words\n", True)
    node.start()
    assert node.drain() == b"last words\n"
    node.spool.done([PodStored("t-1-0", 11, done=True)])
    assert node.links() == []
    assert node.ask(ended=True) == PodAnswer(absent=True)
    assert list(node.spool_dir.rglob("*")) == [node.spool_dir / NAMESPACE]


def test_a_read_scans_for_new_files(node: Node) -> None:
    """No scan between a file's appearance and the question: the answer is right all the same."""
    assert node.ask(ended=True) == PodAnswer(absent=True)
    container = node.kubelet.create("t-1-0")
    assert node.ask(ended=True) == PodAnswer()
    container.write(b"one\n")
    assert node.ask(ended=True) == PodAnswer(b"one\n")
    container.rotate()
    container.write(b"two\n")
    answer = node.ask(offset=4, ended=True)
    assert answer.unsure
    node.wait(1.1)
    assert node.ask(offset=4) == PodAnswer(b"two\n")


def test_each_answer_has_the_times_of_its_lines(node: Node) -> None:
    """Wherever it begins, and however far away that is from the last one."""
    container = node.kubelet.create("t-1-0")
    node.spool.scan()
    lines = [b"line %d\n" % number for number in range(8)]
    for number, line in enumerate(lines):
        container.clock = itertools.count(number * 10**9)
        container.write(line)
        if number == 4:
            assert node.ask().data == b"".join(lines[:5])
            container.rotate()

    assert node.drain() == b"".join(lines)

    def seconds(offset: int, bytes_max: int) -> list[tuple[int, int]]:
        found = node.ask(offset=offset, size=bytes_max).stamps
        return [(each.offset, int(each.micros / 10**6 - START.timestamp())) for each in found]

    assert seconds(0, 35) == [(0, 0), (7, 1), (14, 2), (21, 3), (28, 4)]
    assert seconds(35, 100) == [(0, 5), (7, 6), (14, 7)]
    assert seconds(10, 9) == [(0, 1), (4, 2)]
    assert seconds(0, 3) == [(0, 0)]


def test_an_answer_has_so_many_times_at_most(node: Node) -> None:
    container = node.kubelet.create("t-1-0")
    for number in range(STAMPS_MAX + 500):
        container.clock = itertools.count(number * 10**8)
        container.write(b"x" * 100 + b"\n")
    node.spool.scan()
    data, stamps = b"", 0
    while len(data) < 101 * (STAMPS_MAX + 500):
        answer = node.ask(offset=len(data))
        assert answer.data
        assert len(answer.stamps) <= STAMPS_MAX + CHUNK_BYTES_MAX // 100
        data, stamps = data + answer.data, stamps + len(answer.stamps)
    assert STAMPS_MAX + 500 <= stamps <= STAMPS_MAX + 502


def test_late_writes_to_a_rotated_file_keep_their_place(node: Node) -> None:
    container = node.kubelet.create("t-1-0")
    container.write(b"before\n")
    assert node.drain() == b"before\n"
    old = os.dup(container.file)
    container.rotate()
    container.write(b"after\n")
    assert node.ask(offset=7) == PodAnswer(unsure=True)
    container.output.clear()
    container.entry("F", b"late", file=old)
    os.close(old)
    assert node.ask(offset=7).data == b"late\n"
    assert node.ask(offset=12) == PodAnswer(unsure=True)
    node.wait(1.1)
    assert node.ask(offset=12).data == b"after\n"
    node.start()
    assert node.drain() == b"before\nlate\nafter\n"


def test_pods_and_containers_of_others_are_ignored(node: Node) -> None:
    node.kubelet.create("t-1-0", namespace="kube-system").write(b"x\n")
    node.kubelet.create("t-1-0", container="sidecar").write(b"x\n")
    (node.kubelet.pods_dir / "not_a_pods_folder_at_all").mkdir()
    node.spool.scan()
    assert node.links() == []
    assert node.ask(ended=True).absent


def test_only_plain_files_are_linked(node: Node, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("2026-01-01T00:00:00Z stdout F not for tasks\n")
    container = node.kubelet.create("t-1-0")
    container.path.unlink()
    container.path.symlink_to(secret)
    os.mkfifo(container.folder / "1.log")
    node.spool.scan()
    assert node.links() == []


def test_starts_of_one_container_come_one_after_the_other(node: Node) -> None:
    first = node.kubelet.create("t-1-0")
    first.write(b"first start\n")
    first.end()
    second = Container(first.folder, node.kubelet.clock, restart=1)
    second.write(b"second start\n")
    assert node.drain() == b"first start\nsecond start\n"
    other = node.kubelet.create("t-1-0", uid="another")
    other.write(b"another pod\n")
    assert node.drain() == b"first start\nsecond start\nanother pod\n"


def test_a_late_agent_reads_what_the_kubelet_has_compressed(tmp_path: Path) -> None:
    kubelet_only = Kubelet(tmp_path / "log")
    container = kubelet_only.create("t-1-0")
    for turn in range(5):
        container.write(b"turn %d\n" % turn)
        container.rotate()
    assert len(list(container.folder.glob("*.gz"))) == 3
    (tmp_path / "log").rename(tmp_path / "other")
    node = Node(tmp_path / "new")
    (tmp_path / "other" / "pods" / f"{NAMESPACE}_t-1-0_uid-t-1-0").rename(
        node.kubelet.pods_dir / f"{NAMESPACE}_t-1-0_uid-t-1-0"
    )
    output = b"turn 1\nturn 2\nturn 3\nturn 4\n"  # the first one the kubelet had removed
    assert node.drain() == output
    node.start()
    assert node.drain() == output


def test_a_file_is_known_again_after_it_was_compressed(node: Node) -> None:
    container = node.kubelet.create("t-1-0")
    for turn in range(2):
        container.write(b"turn %d\n" % turn)
        container.rotate()
        node.spool.scan()
    node.drain()
    node.spool.done([PodStored("t-1-0", 14, done=False)])
    assert len(node.links()) == 1
    for _ in range(2):
        node.start()
        container.rotate()  # compresses what was dropped here
        node.spool.scan()
    container.write(b"end\n")
    assert node.drain(offset=14) == b"end\n"


def test_a_gap_while_the_agent_was_away_is_noted(node: Node) -> None:
    container = node.kubelet.create("t-1-0")
    container.write(b"seen\n")
    assert node.drain() == b"seen\n"
    for turn in range(8):
        container.rotate()
        container.write(b"turn %d\n" % turn)
    node.start()
    data = node.drain()
    assert data.startswith(b"seen\n[shiftwork: output is missing here: it was rotated away")
    assert data.endswith(b"turn 4\nturn 5\nturn 6\nturn 7\n")
    node.start()
    assert node.drain() == data


def test_a_damaged_compressed_file_is_noted_and_skipped(tmp_path: Path) -> None:
    node = Node(tmp_path)
    container = node.kubelet.create("t-1-0")
    container.write(b"the current one\n")
    (container.folder / "0.log.20260101-000000.gz").write_bytes(b"\x1f\x8b\x08 not gzip at all")
    data = node.drain()
    assert data.startswith(b"[shiftwork: output is missing here: it was damaged")
    assert data.endswith(b"]\nthe current one\n")


# -- offsets


def test_any_place_of_a_long_output_is_found_again(node: Node) -> None:
    container = node.kubelet.create("t-1-0")
    rng = random.Random(3)
    for _ in range(5):
        for _ in range(20):
            size = rng.choice([10, 1000, 16_384, 60_000])
            container.write(rng.randbytes(size).replace(b"\r", b".") + b"\n" * rng.randrange(3))
        node.spool.scan()
        container.rotate()
        node.spool.scan()
    container.end()
    output = bytes(container.output)
    assert node.drain(size=100_000) == output
    for restart in (False, True):
        if restart:
            node.start()
        for _ in range(60):
            offset, size = rng.randrange(len(output)), rng.choice([1, 100, 70_000])
            before = output[max(0, offset - 64) : offset]
            answer = node.ask(offset=offset, size=size, before=before)
            assert answer.data == output[offset : offset + size]


def test_reading_on_and_reading_again_cost_what_they_give(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = node.kubelet.create("t-1-0")
    line = b"x" * 99 + b"\n"
    container.write(line * 60_000)
    read = 0
    real = os.pread

    def counting(number: int, size: int, offset: int) -> bytes:
        nonlocal read
        data = real(number, size, offset)
        read += len(data)
        return data

    monkeypatch.setattr("os.pread", counting)
    node.spool.scan()
    raw = container.path.stat().st_size
    for offset in range(0, 6_000_000, 100_000):
        assert len(node.ask(offset=offset, size=100_000).data) == 100_000
    assert read < 2 * raw
    read = 0
    container.write(line)
    assert node.ask(offset=6_000_000).data == line
    assert read < 200_000
    for offset in (5_000_000, 100, 3_333_333):
        read = 0
        assert len(node.ask(offset=offset, size=100).data) == 100
        assert read <= 2 * MIB
    node.start()
    read = 0
    assert node.ask(offset=5_900_000, size=100).data == (line * 2)[:100]
    assert read <= 2 * MIB


def test_the_collectors_last_bytes_are_compared(node: Node) -> None:
    container = node.kubelet.create("t-1-0")
    container.write(b"0123456789\n")
    node.spool.scan()
    assert node.ask(offset=5, before=b"01234") == PodAnswer(b"56789\n")
    other = node.ask(offset=5, before=b"abcde")
    assert other.moved
    assert "not those that were kept" in other.problem
    beyond = node.ask(offset=100)
    assert beyond.moved
    assert beyond.problem == "only 11 bytes are here, and bytes from 100 are asked"


def test_damaged_positions_are_rebuilt(node: Node) -> None:
    container = node.kubelet.create("t-1-0")
    for _ in range(3):
        container.write(b"y" * 2 * MIB + b"\n")
        container.rotate()
        node.spool.scan()
    output = node.drain()
    (path,) = node.spool_dir.rglob("checkpoints")
    whole = path.read_bytes()
    for damage in (b"", whole[:-10], whole[:60] + b"\0" * 25 + whole[85:], b"nonsense" * 9):
        path.write_bytes(damage)
        node.start()
        assert node.drain() == output
        node.start()
        assert node.drain(offset=3 * MIB) == output[3 * MIB :]


# -- freeing space


def test_stored_output_is_dropped(node: Node) -> None:
    container = node.kubelet.create("t-1-0")
    for turn in range(3):
        container.write(b"turn %d\n" % turn)
        container.rotate()
        node.spool.scan()
    node.drain()
    node.spool.done([PodStored("t-1-0", 13, done=False), PodStored("nobody-1-0", 5, done=True)])
    assert len(node.links()) == 3
    node.spool.done([PodStored("t-1-0", 14, done=False), PodStored("t-1-0", 3, done=False)])
    assert len(node.links()) == 2
    node.start()
    container.write(b"end\n")
    assert node.drain(offset=14) == b"turn 2\nend\n"
    # What is gone keeps its place.
    assert node.ask(offset=0, size=20).data == (FILLER * 2)[:14]


def test_a_done_output_is_not_taken_up_again_while_its_pod_is_there(node: Node) -> None:
    container = node.kubelet.create("t-1-0")
    container.write(b"x\n")
    node.spool.scan()
    node.spool.done([PodStored("t-1-0", 2, done=True)])
    for _ in range(2):
        container.rotate()
        node.spool.scan()
        assert node.links() == []
        assert node.ask(ended=True) == PodAnswer(absent=True, complete=True)
        node.start()
    container.delete()
    node.spool.scan()
    assert not (node.spool_dir / NAMESPACE / "t-1-0").exists()


def limited(folder: Path, bytes_max: int) -> Node:
    return Node(folder, replace(LIMITS, bytes_max=bytes_max, settle_seconds=0.0))


def fill(node: Node, pod: str, turns: int) -> Container:
    container = node.kubelet.create(pod)
    for turn in range(turns):
        container.write(b"%s turn %d\n" % (pod.encode(), turn) + b"z" * 9_000 + b"\n")
        node.spool.scan()
        container.rotate()
        node.spool.scan()
    return container


def test_a_full_spool_drops_the_oldest_pods_that_are_gone_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = limited(tmp_path, 200_000)
    old = fill(node, "old-1-0", 8)
    old.delete()
    node.wait(5)
    node.spool.scan()
    new = fill(node, "new-1-0", 12)
    new.delete()
    node.wait(5)
    node.spool.scan()
    node.spool.prune()
    assert "output is lost" not in capsys.readouterr().out
    running = fill(node, "run-1-0", 10)
    node.spool.prune()
    assert "output is lost" in capsys.readouterr().out
    lost = node.drain("old-1-0")
    assert lost.startswith(b"[shiftwork: ")
    assert b"bytes of log file are lost here]\n" in lost
    assert node.drain("new-1-0") == bytes(new.output)
    assert node.drain("run-1-0") == bytes(running.output)
    node.start()
    assert node.drain("old-1-0") == lost


@pytest.mark.parametrize("restart", [False, True])
def test_a_full_spool_keeps_the_offsets_of_what_was_given_out(
    tmp_path: Path, restart: bool
) -> None:
    node = limited(tmp_path, 70_000)
    container = fill(node, "t-1-0", 6)
    given = node.drain()[:20_000]  # the third file's bytes are given out in part
    node.spool.done([PodStored("t-1-0", 5_000, done=False)])
    if restart:
        node.start()
        assert node.ask(offset=0, size=20_000).data == given
    for _ in range(3):
        container.write(b"z" * 40_000 + b"\n")
        node.spool.scan()
        container.rotate()
        node.spool.scan()
    node.spool.prune()
    output, data = bytes(container.output), node.drain()
    begin = data.index(b"zzz")
    assert data[-40_000:] == output[-40_000:]
    assert data[:100] == (FILLER * 3)[:100]
    assert begin
    assert sum(path.stat().st_size for path in node.links()) < 200_000
    node.start()
    assert node.drain() == data


def test_old_output_is_dropped_with_an_error_if_it_was_not_read(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    for pod in ("read-1-0", "unread-1-0"):
        container = node.kubelet.create(pod)
        container.write(b"x\n")
        node.spool.scan()
        container.delete()
    node.spool.scan()
    assert node.drain("read-1-0") == b"x\n"
    node.spool.done([PodStored("read-1-0", 2, done=False)])
    node.wait(3500)
    node.spool.prune()
    assert len(node.links()) == 2
    node.wait(200)
    node.spool.prune()
    assert node.links() == []
    output = capsys.readouterr().out
    assert "unread-1-0" in output
    assert "pod=read-1-0" not in output


def test_a_clock_that_is_ahead_for_hours_costs_no_output_of_the_last_two_days(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node(tmp_path, replace(LIMITS, keep_seconds=3 * 86_400.0))
    container = node.kubelet.create("t-1-0")
    container.write(b"x\n")
    node.spool.scan()
    for _ in range(3):
        node.wait(3600)
        node.spool.prune()
    container.delete()
    node.spool.scan()
    node.clock.advance(3650 * 86_400)
    for _ in range(3):
        node.wait(3600)
        node.spool.prune()
    assert node.drain() == b"x\n"
    assert "check this node's clock" in capsys.readouterr().out
    node.clock.advance(-3650 * 86_400)
    # It is dropped when it is old by a clock that is right.
    node.wait(2 * 86_400)
    node.spool.prune()
    assert node.drain() == b"x\n"
    node.wait(86_400)
    node.spool.prune()
    assert node.links() == []


# -- refusals


def test_a_folder_that_is_not_there_is_a_problem_and_not_an_end(node: Node, tmp_path: Path) -> None:
    node.kubelet.pods_dir.rename(tmp_path / "away")
    answer = node.ask(ended=True)
    assert not answer.absent
    assert "cannot be listed" in answer.problem
    (tmp_path / "away").rename(node.kubelet.pods_dir)
    assert node.ask(ended=True) == PodAnswer(absent=True)
    assert node.spool.problem == ""


def test_logs_on_another_file_system_are_a_problem_with_the_fix(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: Any, **_named: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    node.kubelet.create("t-1-0").write(b"x\n")
    answer = node.ask(ended=True)
    assert "Invalid cross-device link" in answer.problem
    assert "one file system" in answer.problem
    assert node.spool.problem == answer.problem
    monkeypatch.undo()
    assert node.ask(ended=True).data == b"x\n"
    node.spool.scan()
    assert node.spool.problem == ""


# -- any sequence

things = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.binary(max_size=300)),
        st.tuples(st.just("write"), st.integers(0, 150_000).map(lambda size: b"w" * size)),
        st.tuples(st.just("error"), st.binary(max_size=30).map(lambda text: text + b"\n")),
        st.tuples(st.just("rotate"), st.none()),
        st.tuples(st.just("scan"), st.none()),
        st.tuples(st.just("start"), st.none()),
        st.tuples(st.just("read"), st.integers(1, 200_000)),
        st.tuples(st.just("again"), st.integers(0, 300_000)),
        st.tuples(st.just("kept"), st.none()),
        st.tuples(st.just("wait"), st.floats(0, 2)),
    ),
    max_size=40,
)


class Story:
    """One pod, and what may happen to it and to the agent."""

    def __init__(self, folder: Path) -> None:
        self.node = Node(folder)
        self.container = self.node.kubelet.create("t-1-0")
        self.data, self.kept_size, self.unseen = b"", 0, 0

    def write(self, data: bytes) -> None:
        self.container.write(data.replace(b"\r", b"\n"))

    def error(self, data: bytes) -> None:
        self.container.write(data.replace(b"\r", b"\n"), "stderr")

    def rotate(self, _: None) -> None:
        self.unseen += 1
        if self.unseen > self.container.files_max - 2:  # more than the kubelet does in seconds
            self.scan(None)
            self.unseen = 1
        self.container.rotate()

    def scan(self, _: None) -> None:
        self.node.spool.scan()
        self.unseen = 0

    def start(self, _: None) -> None:
        self.node.start()
        self.unseen = 0

    def read(self, size: int) -> None:
        answer = self.node.ask(offset=len(self.data), size=size, before=self.data[-64:])
        assert not answer.problem
        self.data += answer.data

    def again(self, number: int) -> None:
        offset = self.kept_size + number % (len(self.data) - self.kept_size + 1)
        answer = self.node.ask(offset=offset, size=50_000)
        assert not answer.problem
        assert self.data[offset : offset + 50_000] == answer.data[: len(self.data) - offset]

    def kept(self, _: None) -> None:
        self.kept_size = len(self.data)
        self.node.spool.done([PodStored("t-1-0", self.kept_size, done=False)])

    def wait(self, seconds: float) -> None:
        self.node.wait(seconds)


@given(things, st.booleans())
@settings(max_examples=80, deadline=None)
def test_whatever_happens_the_bytes_and_their_offsets_are_right(
    todo: list[tuple[str, Any]], deleted: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder))
        for what, value in todo:
            getattr(story, what)(value)
        container, node = story.container, story.node
        container.end()
        node.spool.scan()
        if deleted:
            container.delete()
        assert story.data + node.drain(offset=len(story.data)) == bytes(container.output)
