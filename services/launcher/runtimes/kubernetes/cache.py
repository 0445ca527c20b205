"""The known state of the cluster, which four reflectors maintain; ``listing`` is one full scan.

Used by ``runtime.py``. Events change small records, never the whole: a scan costs as much as
changed, and one copy of each index.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any

from libs.contracts.ids import RunId
from services.launcher.domain.model import Listing
from services.launcher.runtimes.kubernetes.cluster_nodes import NodeRules, Nodes, Use, use_of
from services.launcher.runtimes.kubernetes.pod_state import is_over
from services.launcher.runtimes.kubernetes.pods import Runs, run_id_of

Json = dict[str, Any]


class Cache:
    """Nodes, run objects, pods of ours and the use by others."""

    def __init__(
        self, rules: NodeRules, now: Callable[[], datetime], changed: Callable[[], None]
    ) -> None:
        self._rules, self._changed = rules, changed
        self.nodes = Nodes(rules)
        self.runs = Runs(self.nodes, now)
        # The node of each pod of others, and whether it is in our namespace, by uid.
        self._others: dict[str, tuple[str, bool]] = {}
        self._nodes: dict[str, str] = {}
        self._listings = 0
        # The version of the cluster up to which the reflectors have applied everything.
        self.pods_version = self.objects_version = 0

    def listing(self) -> Listing:
        """One full scan."""
        runs, changed = self.runs.listing()
        self._listings += 1
        return Listing(self.nodes.listing(), runs, self._listings, changed)

    def put_answer(self, thing: Json) -> None:
        """Apply a pod or run object from an answer to a call of ours, unless the watch, which has
        applied everything up to some version, may have reported its end before."""
        run_id, meta = run_id_of(thing), thing["metadata"]
        if run_id is None or not meta.get("resourceVersion"):
            # A deletion that another one overtook is answered with an object of no version.
            return
        version, is_pod = int(meta["resourceVersion"]), "containers" in thing.get("spec", {})
        if is_pod:
            if version > self.pods_version or self.runs.pod(meta["name"]) is not None:
                self._put_pod(thing, run_id)
        elif version > self.objects_version or run_id in self.runs.objects:
            self._put_object(thing, run_id)

    def put_pod(self, thing: Json) -> None:
        """A pod in the namespace of the tasks: ours, or one of others."""
        run_id = run_id_of(thing)
        if run_id is None:
            self.put_other(thing, within=True)
        else:
            self._put_pod(thing, run_id)

    def _put_pod(self, thing: Json, run_id: RunId) -> None:
        if self.runs.put_pod(run_id, thing):
            self._changed()

    def gone_pod(self, thing: Json) -> None:
        """A pod in the namespace of the tasks is gone."""
        meta = thing["metadata"]
        if run_id_of(thing) is None:
            self.gone_other(meta["uid"])
        elif self.runs.drop_pod(meta["name"], thing, int(meta["resourceVersion"])):
            self._changed()

    def forget_pods(self, named: AbstractSet[str], version: int) -> None:
        """Pods of ours without one of these uids are gone as of this version."""
        for name, uid in self.runs.names():
            if uid not in named and self.runs.drop_pod(name, None, version):
                self._changed()

    def put_other(self, thing: Json, *, within: bool) -> None:
        """A pod of others; ``within`` the namespace of the tasks."""
        uid: str = thing["metadata"]["uid"]
        node_id: str = thing["spec"].get("nodeName") or ""
        use = use_of(thing, self._rules.gpu_resource)
        if not node_id or is_over(thing) or use == Use():
            self.gone_other(uid)
            return
        self._others[uid] = (node_id, within)
        if self.nodes.use_by_other(node_id, uid, use):
            self._changed()

    def gone_other(self, uid: str) -> None:
        """A pod of others is gone, or holds nothing any more."""
        node_id, _ = self._others.pop(uid, ("", False))
        if node_id:
            self.nodes.use_by_other(node_id, uid, None)
            self._changed()

    def forget_others(self, named: AbstractSet[str], *, within: bool) -> None:
        """Others' pods without one of these uids are gone."""
        known = [uid for uid, (_, where) in self._others.items() if where is within]
        for uid in known:
            if uid not in named:
                self.gone_other(uid)

    def put_node(self, thing: Json) -> None:
        """A node of ours."""
        node_id: str = thing["metadata"]["name"]
        self._nodes[thing["metadata"]["uid"]] = node_id
        if self.nodes.put(thing):
            self.runs.node_changed(node_id)
        self._changed()

    def gone_node(self, uid: str) -> None:
        """A node is gone, or is none of ours any more."""
        node_id = self._nodes.pop(uid, "")
        # A node that came back under its name is another one.
        if node_id and node_id not in self._nodes.values() and self.nodes.drop(node_id):
            self.runs.node_changed(node_id)
            self._changed()

    def forget_nodes(self, named: AbstractSet[str]) -> None:
        """Nodes without one of these uids are gone."""
        for uid in list(self._nodes):
            if uid not in named:
                self.gone_node(uid)

    def put_object(self, thing: Json) -> None:
        """A run object."""
        run_id = run_id_of(thing)
        if run_id is not None:
            self._put_object(thing, run_id)

    def _put_object(self, thing: Json, run_id: RunId) -> None:
        if self.runs.put_object(run_id, thing):
            self._changed()

    def gone_object(self, uid: str, version: int) -> None:
        """A run object is gone."""
        if self.runs.drop_object(uid, version):
            self._changed()

    def forget_objects(self, named: AbstractSet[str], version: int) -> None:
        """Run objects without one of these uids are gone as of this version."""
        for thing in list(self.runs.objects.values()):
            if thing.uid not in named:
                self.gone_object(thing.uid, version)


def version_of(thing: Json) -> int:
    """The version of the cluster that made an object what it is; they only grow."""
    return int(thing["metadata"]["resourceVersion"])


class CacheSink:
    """``reflector.Sink`` for one kind of objects: what a full list does not name is gone."""

    def __init__(
        self,
        take: Callable[[Json], None],
        drop: Callable[[Json], None],
        forget: Callable[[AbstractSet[str], int], None],
        note_version: Callable[[int], None] = lambda _: None,
    ) -> None:
        # ``forget`` drops what has none of these uids, unless it is of a later version: objects
        # that the launcher has created meanwhile stay.
        self.take, self.drop, self.forget = take, drop, forget
        self._note_version = note_version
        self._named: set[str] | None = None

    def begin(self) -> None:
        """See ``reflector.Sink``."""
        self._named = set()

    def put(self, thing: Json) -> None:
        """See ``reflector.Sink``."""
        if self._named is not None:
            # During a list, objects that are not named yet may still follow.
            self._named.add(thing["metadata"]["uid"])
        else:
            self._note_version(version_of(thing))
        self.take(thing)

    def gone(self, thing: Json) -> None:
        """See ``reflector.Sink``."""
        self._note_version(version_of(thing))
        self.drop(thing)

    def end(self, version: int) -> None:
        """See ``reflector.Sink``."""
        named, self._named = self._named or set[str](), None
        self._note_version(version)
        self.forget(named, version)


def pod_sink(cache: Cache) -> CacheSink:
    """The sink for pods in the namespace of the tasks."""

    def forget(named: AbstractSet[str], version: int) -> None:
        cache.forget_pods(named, version)
        cache.forget_others(named, within=True)

    def note_version(version: int) -> None:
        cache.pods_version = max(cache.pods_version, version)

    return CacheSink(cache.put_pod, cache.gone_pod, forget, note_version)


def other_pod_sink(cache: Cache) -> CacheSink:
    """The sink for pods in all other namespaces."""
    return CacheSink(
        lambda thing: cache.put_other(thing, within=False),
        lambda thing: cache.gone_other(thing["metadata"]["uid"]),
        lambda named, _: cache.forget_others(named, within=False),
    )


def node_sink(cache: Cache) -> CacheSink:
    """The sink for the platform's nodes."""
    return CacheSink(
        cache.put_node,
        lambda thing: cache.gone_node(thing["metadata"]["uid"]),
        lambda named, _: cache.forget_nodes(named),
    )


def object_sink(cache: Cache) -> CacheSink:
    """The sink for run objects."""

    def note_version(version: int) -> None:
        cache.objects_version = max(cache.objects_version, version)

    return CacheSink(
        cache.put_object,
        lambda thing: cache.gone_object(thing["metadata"]["uid"], version_of(thing)),
        cache.forget_objects,
        note_version,
    )
