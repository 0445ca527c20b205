from __future__ import annotations

import itertools
from datetime import datetime
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.launcher.domain.model import Fault, Listing, RankState
from services.launcher.runtimes.kubernetes.cache import (
    Cache,
    node_sink,
    object_sink,
    other_pod_sink,
    pod_sink,
)
from services.launcher.runtimes.kubernetes.cluster_nodes import NodeRules
from tests.kit.clock import START, at
from tests.kit.launcher_builders import run_id
from tests.services.launcher.runtimes.kubernetes.test_cluster_nodes import GPU, a_node

RUN = run_id()
LABELS = {
    "app.kubernetes.io/managed-by": "shiftwork",
    "shiftwork.dev/task": "task",
    "shiftwork.dev/attempt": "1",
}


class ComparingCache(Cache):
    """A cache that compares each listing with the last: runs that are not in ``changed`` are the
    same."""

    last: Listing | None = None

    def listing(self) -> Listing:
        listing, before = super().listing(), self.last
        if before is not None:
            assert listing.number == before.number + 1
            run_all = before.runs.keys() | listing.runs.keys()
            assert all(
                before.runs.get(run) is listing.runs.get(run)
                for run in run_all - {*listing.changed}
            )
        self.last = listing
        return listing


class Known:
    """A cache with its sinks, filled by hand."""

    def __init__(self) -> None:
        self.now: datetime = START
        self.changes = 0
        self.cache = ComparingCache(NodeRules(), lambda: self.now, self._changed)
        self.pods, self.others = pod_sink(self.cache), other_pod_sink(self.cache)
        self.nodes, self.objects = node_sink(self.cache), object_sink(self.cache)
        self.versions = itertools.count(100)

    def _changed(self) -> None:
        self.changes += 1

    def pod(self, rank: int = 0, *, version: int = 0, state: str = "running", **more: Any) -> Any:
        name = f"task-1-{rank}"
        states = {
            "pending": ("Pending", {}),
            "running": ("Running", {"running": {"startedAt": "2026-01-01T00:00:00Z"}}),
            "pulling": ("Pending", {"waiting": {"reason": "ErrImagePull"}}),
            "backing off": ("Pending", {"waiting": {"reason": "ImagePullBackOff"}}),
            "done": ("Succeeded", {"terminated": {"exitCode": 0}}),
        }
        phase, found = states[state]
        return {
            "metadata": {
                "name": name,
                "uid": more.get("uid", f"uid-{name}"),
                "resourceVersion": str(version or next(self.versions)),
                "labels": {**LABELS, "shiftwork.dev/rank": str(rank)},
                "annotations": {"shiftwork.dev/gpus": "0", "shiftwork.dev/node": f"n{rank}"},
                "ownerReferences": [{"kind": "ConfigMap", "uid": "owner"}],
                **more.get("meta", {}),
            },
            "spec": {"nodeName": more.get("node", f"n{rank}"), "containers": [{"name": "main"}]},
            "status": {"phase": phase, "containerStatuses": [{"name": "main", "state": found}]},
        }

    def object(self, *, version: int = 0, **notes: str) -> Any:
        return {
            "metadata": {
                "name": "task-1",
                "uid": "owner",
                "resourceVersion": str(version or next(self.versions)),
                "labels": LABELS,
                "annotations": {f"shiftwork.dev/{key}": value for key, value in notes.items()},
            }
        }

    def begun(self) -> None:
        for number in range(2):
            self.nodes.put(a_node(f"n{number}"))
        self.objects.put(self.object())

    def states(self) -> dict[int, RankState]:
        observed = self.cache.listing().runs.get(RUN)
        return {} if observed is None else {n: rank.state for n, rank in observed.ranks.items()}


def test_a_run_consists_of_its_pods() -> None:
    known = Known()
    known.begun()
    assert known.states() == {}
    assert RUN in known.cache.listing().runs
    known.pods.put(known.pod(0))
    known.pods.put(known.pod(1, state="pending", node=""))
    assert known.states() == {0: RankState.RUNNING, 1: RankState.PENDING}
    observed = known.cache.listing().runs[RUN]
    assert observed.node_ids == {"n0", "n1"}
    # What did not change is the very same value.
    assert known.cache.listing().runs[RUN] is observed


def test_an_older_version_changes_nothing() -> None:
    known = Known()
    known.begun()
    known.pods.put(known.pod(version=20))
    known.cache.put_answer(known.pod(version=19, state="pending"))
    known.pods.put(known.pod(version=18, state="pending"))
    assert known.states() == {0: RankState.RUNNING}
    known.pods.gone(known.pod(version=17))
    assert known.states() == {0: RankState.RUNNING}


def test_an_answer_without_a_version_changes_nothing() -> None:
    """The API server's to a deletion that another one overtook."""
    known = Known()
    known.begun()
    known.pods.put(known.pod())
    late = known.pod(state="done")
    del late["metadata"]["resourceVersion"]
    known.cache.put_answer(late)
    assert known.states() == {0: RankState.RUNNING}


def test_our_own_orders_are_listed_at_once() -> None:
    known = Known()
    known.begun()
    known.cache.put_answer(known.pod(state="pending"))
    assert known.states() == {0: RankState.PENDING}


def test_a_late_answer_does_not_restore_a_deleted_pod() -> None:
    """The watch reports that the pod is gone before the answer of our call, which still shows
    it, is read."""
    known = Known()
    known.begun()
    known.cache.put_answer(known.object(ended="2026-01-01T00:00:00+00:00"))
    known.pods.put(known.pod(version=500))
    known.pods.gone(known.pod(version=502))
    known.cache.put_answer(known.pod(version=501))
    assert known.states() == {0: RankState.EXITED}
    known.cache.put_answer(known.object(version=1, forgotten="2026-01-01T00:00:00Z"))
    assert RUN in known.cache.listing().runs


def test_a_list_forgets_what_it_does_not_name_but_not_what_is_newer() -> None:
    known = Known()
    known.begun()
    known.pods.put(known.pod(0, version=200))
    known.cache.put_answer(known.pod(1, version=400, state="pending"))
    known.pods.begin()
    known.pods.end(300)
    assert known.states() == {0: RankState.LOST, 1: RankState.PENDING}
    assert known.cache.listing().runs[RUN].ranks[0].fault is Fault.DELETED


def test_a_pod_of_the_same_name_is_another_one() -> None:
    known = Known()
    known.begun()
    known.pods.put(known.pod(version=200))
    known.pods.put(known.pod(version=210, uid="second", state="pending"))
    assert known.states() == {0: RankState.PENDING}
    known.pods.gone(known.pod(version=205))
    assert known.states() == {0: RankState.PENDING}


def test_a_pod_that_we_ended_is_not_lost() -> None:
    known = Known()
    known.begun()
    known.pods.put(known.pod())
    known.objects.put(known.object(ended="2026-01-01T00:00:00Z"))
    known.pods.gone(known.pod())
    assert known.states() == {0: RankState.EXITED}


def leaving(known: Known, state: str, finished: str = "", code: int = 0) -> Any:
    """A pod whose deletion was ordered at 10:00:00, with a grace of half a minute."""
    meta = {"deletionTimestamp": "2026-01-01T10:00:30Z", "deletionGracePeriodSeconds": 30}
    pod = known.pod(state=state, meta=meta)
    if finished:
        ended = {"exitCode": code, "finishedAt": f"2026-01-01T{finished}Z"}
        pod["status"]["containerStatuses"][0]["state"] = {"terminated": ended}
    return pod


@pytest.mark.parametrize("code", [0, 3, 143])
@pytest.mark.parametrize("delivered", [True, False])
def test_a_pod_that_others_deleted_is_lost_whatever_its_exit(code: int, delivered: bool) -> None:
    known = Known()
    known.begun()
    known.pods.put(known.pod())
    known.pods.put(leaving(known, "running"))
    assert known.states() == {0: RankState.RUNNING}
    ended = leaving(known, "done", "10:00:00", code)
    if delivered:
        known.pods.put(ended)
        assert known.states() == {0: RankState.LOST}
    known.pods.drop(ended)
    [rank] = known.cache.listing().runs[RUN].ranks.values()
    assert (rank.state, rank.fault) == (RankState.LOST, Fault.DELETED)


def test_a_pod_that_we_deleted_keeps_its_exit() -> None:
    """This holds if it is listed before the run's object, as after a change of leaders."""
    known = Known()
    for number in range(2):
        known.nodes.put(a_node(f"n{number}"))
    known.pods.put(leaving(known, "done", "10:00:05"))
    known.objects.put(known.object(ended="2026-01-01T10:00:00Z"))
    [rank] = known.cache.listing().runs[RUN].ranks.values()
    assert (rank.state, rank.code) == (RankState.EXITED, 0)


def test_deleting_an_ended_pod_does_not_make_it_lost() -> None:
    known = Known()
    known.begun()
    known.pods.put(known.pod(state="done"))
    known.pods.put(leaving(known, "done", "10:00:00"))
    assert known.states() == {0: RankState.EXITED}
    # Its end was not observed, but its time shows it.
    other = Known()
    other.begun()
    other.pods.put(leaving(other, "done", "09:59:59"))
    assert other.states() == {0: RankState.EXITED}


def test_on_a_silent_node_only_final_states_are_listed() -> None:
    known = Known()
    known.begun()
    known.pods.put(known.pod(0))
    known.pods.put(known.pod(1, state="done"))
    for number in range(2):
        known.nodes.put(a_node(f"n{number}", ready="Unknown", version=2))
    assert known.states() == {1: RankState.EXITED}
    known.nodes.put(a_node("n0", version=3))
    assert known.states() == {0: RankState.RUNNING, 1: RankState.EXITED}


def test_a_rank_that_was_given_up_stays_lost() -> None:
    known = Known()
    known.begun()
    known.pods.put(known.pod())
    known.nodes.put(a_node("n0", ready="False", version=2))
    [pod] = known.cache.runs.pods_on("n0")
    known.cache.runs.give_up(pod)
    assert known.states() == {0: RankState.LOST}
    assert known.cache.listing().nodes["n0"].node.unusable_gpus == (0,)
    known.nodes.put(a_node("n0", version=3))
    known.pods.put(known.pod(state="running"))
    assert known.states() == {0: RankState.LOST}
    known.pods.gone(known.pod())
    assert known.states() == {0: RankState.LOST}
    assert known.cache.listing().nodes["n0"].node.unusable_gpus == ()


def test_a_fault_has_lasted_since_it_was_first_seen() -> None:
    known = Known()
    known.begun()
    known.pods.put(known.pod(state="pulling"))
    known.now = at(7)
    known.pods.put(known.pod(state="backing off"))
    rank = known.cache.listing().runs[RUN].ranks[0]
    assert (rank.fault, rank.fault_since) == (Fault.IMAGE_PULL, START)
    known.pods.put(known.pod(state="pending"))
    assert known.cache.listing().runs[RUN].ranks[0].fault_since == at(7)


def test_a_forgotten_run_is_not_listed_unless_it_runs() -> None:
    known = Known()
    known.begun()
    known.pods.put(known.pod(state="done"))
    known.objects.put(known.object(ended="x", forgotten="2026-01-01T00:00:00Z"))
    assert RUN not in known.cache.listing().runs
    known.pods.put(known.pod(1))
    assert known.states() == {1: RankState.RUNNING}
    [stray] = known.cache.runs.strays()
    assert stray.name == "task-1-1"


def test_nothing_of_a_removed_run_stays_in_memory() -> None:
    known = Known()
    known.begun()
    known.pods.put(known.pod())
    known.objects.put(known.object(ended="x"))
    known.pods.gone(known.pod())
    known.objects.put(known.object(ended="x", forgotten="2026-01-01T00:00:00Z"))
    known.objects.gone(known.object())
    known.cache.listing()
    runs = known.cache.runs
    for memory in (runs.objects, runs._pods, runs._by_run, runs._on_node, runs._gone):
        assert memory == {}
    assert runs._observed == {}
    assert known.cache.nodes._held == {}


def a_foreign(known: Known, uid: str, *, phase: str = "Running", node: str = "n0") -> Any:
    return {
        "metadata": {"name": uid, "uid": uid, "resourceVersion": str(next(known.versions))},
        "spec": {
            "nodeName": node,
            "containers": [{"resources": {"requests": {GPU: "1"}}}],
        },
        "status": {"phase": phase},
    }


def test_pods_of_others_among_ours_and_elsewhere() -> None:
    known = Known()
    known.begun()
    known.pods.put(a_foreign(known, "within"))
    known.others.put(a_foreign(known, "elsewhere"))
    known.others.put(a_foreign(known, "over", phase="Succeeded"))
    known.others.put(a_foreign(known, "unbound", node=""))
    assert known.cache.listing().nodes["n0"].node.unusable_gpus == (2, 3)
    # Each list reports only which of its own pods are gone.
    known.others.begin()
    known.others.end(10_000)
    assert known.cache.listing().nodes["n0"].node.unusable_gpus == (3,)
    known.pods.gone(a_foreign(known, "within"))
    assert known.cache.listing().nodes["n0"].node.unusable_gpus == ()


def test_an_event_without_a_change_gives_no_hint() -> None:
    known = Known()
    known.begun()
    known.pods.put(known.pod())
    before = known.changes
    known.pods.put(known.pod())
    assert known.changes == before


class Machine(RuleBasedStateMachine):
    """Events in any order beside answers that come early or late: in the end the truth is known."""

    def __init__(self) -> None:
        super().__init__()
        self.known = Known()
        self.known.begun()
        self.version = 1000
        # The server: the pods that are there, and everything that ever happened, in order.
        self.there: dict[int, Any] = {}
        self.history: list[tuple[str, Any]] = []
        self.delivered = 0
        self.answers: list[Any] = []
        self.uids = itertools.count()

    def _happen(self, kind: str, rank: int, state: str, uid: str) -> Any:
        self.version += 1
        pod = self.known.pod(rank, version=self.version, state=state, uid=uid)
        self.history.append((kind, pod))
        return pod

    @rule(rank=st.integers(0, 1), state=st.sampled_from(["pending", "running", "done"]))
    def change(self, rank: int, state: str) -> None:
        uid = self.there[rank]["metadata"]["uid"] if rank in self.there else f"u{next(self.uids)}"
        pod = self.there[rank] = self._happen("put", rank, state, uid)
        self.answers.append(pod)

    @precondition(lambda self: self.there)
    @rule(rank=st.integers(0, 1))
    def delete(self, rank: int) -> None:
        pod = self.there.pop(rank, None)
        if pod is not None:
            self.answers.append(self._happen("gone", rank, "running", pod["metadata"]["uid"]))

    @precondition(lambda self: self.delivered < len(self.history))
    @rule(count=st.integers(1, 3))
    def deliver(self, count: int) -> None:
        """The watch delivers further events."""
        for kind, pod in self.history[self.delivered : self.delivered + count]:
            getattr(self.known.pods, kind)(pod)
        self.delivered = min(len(self.history), self.delivered + count)

    @precondition(lambda self: self.answers)
    @rule(which=st.integers(0, 5))
    def answer(self, which: int) -> None:
        """The cache reads an answer, in any order."""
        self.known.cache.put_answer(self.answers.pop(which % len(self.answers)))

    @rule()
    def list_again(self) -> None:
        self.known.pods.begin()
        for pod in self.there.values():
            self.known.pods.put(pod)
        self.known.pods.end(self.version)
        self.delivered = len(self.history)

    @invariant()
    def what_was_delivered_is_known(self) -> None:
        if self.delivered == len(self.history) and not self.answers:
            pods = {pod.observed.rank: pod.version for pod in self.known.cache.runs.pods_of(RUN)}
            assert pods == {
                rank: int(pod["metadata"]["resourceVersion"]) for rank, pod in self.there.items()
            }

    def teardown(self) -> None:
        self.deliver(len(self.history) + 1)
        while self.answers:
            self.answer(0)
        self.what_was_delivered_is_known()


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestCache = Machine.TestCase
