"""Creates, annotates and deletes the objects of runs in the cluster. Used by ``runtime.py``.

Every answer updates the cache, so that no scan is older than our own orders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from datetime import datetime
from typing import Any
from weakref import WeakValueDictionary

from libs.contracts.ids import RunId
from libs.kube.client import (
    CONFLICT,
    FORBIDDEN,
    NOT_FOUND,
    ApiError,
    KubeClient,
    namespaced,
)
from services.launcher.domain.model import Fault
from services.launcher.domain.rank_faults import describe
from services.launcher.manifests import RunManifests, run_labels, run_name
from services.launcher.runtimes.kubernetes.cache import Cache
from services.launcher.runtimes.kubernetes.epoch_fence import EpochFence, unavailable
from services.launcher.runtimes.kubernetes.pod_state import one_line
from services.launcher.runtimes.kubernetes.pods import (
    ENDED,
    Pod,
    owner_uid_of,
    restarts_of,
    run_id_of,
)
from services.launcher.runtimes.port import (
    LaunchRefusedError,
    RuntimeDeniedError,
    RuntimeUnavailableError,
)

Json = dict[str, Any]
WARNINGS_MAX = 50
KINDS = {"ConfigMap": "configmaps", "Pod": "pods", "Secret": "secrets", "Service": "services"}

INVALID = (400, 413, 415, 422)
# Parts of the server's messages about the launcher's own rights, and about objects that are being
# created or deleted.
NOT_NOW = (
    "cannot create resource",
    "is being terminated",
    "error looking up service account",
    "no api token found for service account",
    "not yet ready to handle request",
)
QUOTA = "exceeded quota"


class RunObjectWriter:
    """The writes to objects of one namespace."""

    def __init__(self, client: KubeClient, cache: Cache, namespace: str) -> None:
        self._client, self._cache, self._namespace = client, cache, namespace
        # Two concurrent launches of a run would take each other's objects for foreign ones.
        self._making = WeakValueDictionary[RunId, asyncio.Lock]()

    def path(self, kind: str, name: str = "") -> str:
        """The path of a kind, or of one object."""
        return namespaced(self._namespace, kind, name)

    # Creation

    async def make(self, run_id: RunId, objects: RunManifests, fence: EpochFence) -> None:
        """Create what is missing: the run object, then what the pods name, then the pods."""
        async with self._making.setdefault(run_id, asyncio.Lock()):
            await self._make(run_id, objects, fence)

    async def _make(self, run_id: RunId, objects: RunManifests, fence: EpochFence) -> None:
        uid, fresh = await self._own(run_id, objects.run_object)
        objects = objects.owned_by(uid)
        missing = [pod for pod in objects.pods if self._is_missing(run_id, pod, uid)]
        if not missing:
            return
        beside = [*objects.secrets, *([objects.service] if objects.service else [])]
        await run_all(self._create_beside(each, fresh=fresh) for each in beside)
        await fence.check()
        await run_all(self._replace_pod(run_id, pod, uid) for pod in missing)

    async def _own(self, run_id: RunId, thing: Json) -> tuple[str, bool]:
        """The run object's uid, and whether it was made just now. RuntimeDeniedError if the run
        was ended."""
        known = self._cache.runs.objects.get(run_id)
        if known is not None:
            if known.ended or known.forgotten_at is not None:
                raise RuntimeDeniedError(f"run {run_id} was ended")
            return known.uid, False
        fresh = True
        try:
            made = await self._client.create(self.path("configmaps"), thing)
        except ApiError as problem:
            if not problem.exists:
                raise refusal(problem, _named(thing), self._namespace) from problem
            made, fresh = await self._read(thing), False
            if run_id_of(made) != run_id:
                raise name_taken(_named(thing)) from problem
        self._cache.put_answer(made)
        known = self._cache.runs.objects[run_id]
        if known.ended or known.forgotten_at is not None:
            raise RuntimeDeniedError(f"run {run_id} was ended")
        return known.uid, fresh

    async def _read(self, thing: Json) -> Json:
        try:
            path = self.path(KINDS[thing["kind"]], thing["metadata"]["name"])
            return await self._client.get(path)
        except ApiError as problem:
            # Gone again between two calls.
            raise RuntimeUnavailableError(problem.message) from problem

    def _is_missing(self, run_id: RunId, thing: Json, uid: str) -> bool:
        meta = thing["metadata"]
        known = self._cache.runs.pod(meta["name"])
        if known is not None:
            if known.owner_uid != uid:
                raise name_taken(_named(thing))
            return known.observed.start < restarts_of(thing)
        rank = int(meta["name"].rpartition("-")[2])
        return not self._cache.runs.is_gone(run_id, rank, restarts_of(thing))

    async def _create_beside(self, thing: Json, *, fresh: bool) -> None:
        """A Secret or the Service. Those of an earlier try are ours, as the run object is."""
        try:
            await self._client.create(self.path(KINDS[thing["kind"]]), thing)
        except ApiError as problem:
            if problem.exists and (not fresh or problem.repeated):
                return
            if problem.exists:
                raise name_taken(_named(thing)) from problem
            raise refusal(problem, _named(thing), self._namespace) from problem

    async def _replace_pod(self, run_id: RunId, thing: Json, uid: str) -> None:
        """Create a pod. The ended one of the rank's former process is deleted before, because the
        new one has the same name. If we die in between, the launcher orders it again."""
        former = self._cache.runs.pod(thing["metadata"]["name"])
        if former is not None:
            if not former.over:
                raise RuntimeUnavailableError(f"pod {former.name} is not over")
            await self.delete_pod(former, 1)
        await self._create_pod(run_id, thing, uid)

    async def _create_pod(self, run_id: RunId, thing: Json, uid: str) -> None:
        try:
            made = await self._client.create(self.path("pods"), thing)
        except ApiError as problem:
            if not problem.exists:
                raise refusal(problem, _named(thing), self._namespace) from problem
            made = await self._read(thing)
            if run_id_of(made) != run_id or owner_uid_of(made) != uid:
                raise name_taken(_named(thing)) from problem
            if restarts_of(made) < restarts_of(thing):
                self._cache.put_answer(made)
                text = f"the former pod {made['metadata']['name']} is not gone yet"
                raise RuntimeUnavailableError(text) from problem
        self._cache.put_answer(made)

    # Annotation and deletion

    async def mark_ended(self, run_id: RunId, now: datetime) -> None:
        """Annotate the run object, so that nothing of it starts any more. Creates it if
        necessary."""
        known = self._cache.runs.objects.get(run_id)
        if known is not None and known.ended:
            return
        notes = {ENDED: now.isoformat(timespec="seconds")}
        if await self.annotate(run_id, notes) is not None:
            return
        thing: Json = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": run_name(run_id),
                "labels": run_labels(run_id),
                "annotations": notes,
            },
        }
        try:
            self._cache.put_answer(await self._client.create(self.path("configmaps"), thing))
        except ApiError as problem:
            # Made meanwhile: the next try finds it.
            raise unavailable(problem, self._namespace) from problem

    async def annotate(self, run_id: RunId, notes: Json) -> Json | None:
        """The run object with these annotations; None if there is none."""
        path = self.path("configmaps", run_name(run_id))
        try:
            made = await self._client.patch(path, {"metadata": {"annotations": notes}})
        except ApiError as problem:
            if problem.status == NOT_FOUND:
                return None
            raise unavailable(problem, self._namespace) from problem
        self._cache.put_answer(made)
        return made

    async def refresh_pods(self, run_id: RunId) -> None:
        """Update the cache with every current pod of a run, whichever leader created it."""
        selector = ",".join(f"{key}={value}" for key, value in run_labels(run_id).items())
        try:
            async for items, _ in self._client.pages(self.path("pods"), labelSelector=selector):
                for thing in items:
                    self._cache.put_answer(thing)
        except ApiError as problem:
            raise unavailable(problem, self._namespace) from problem

    async def delete_pod(self, pod: Pod, grace: int) -> None:
        """Order its deletion; the watch reports when it is gone. A pod that is being deleted
        already only gets a shorter grace period."""
        if pod.deleting is not None and pod.deleting <= grace:
            return
        options: Json = {"preconditions": {"uid": pod.uid}}
        if pod.bound and not pod.over:
            options["gracePeriodSeconds"] = grace
        try:
            left = await self._client.delete(self.path("pods", pod.name), options)
        except ApiError as problem:
            if problem.status == CONFLICT:
                raise RuntimeUnavailableError(f"pod {pod.name} is another one now") from problem
            raise unavailable(problem, self._namespace) from problem
        if left is not None and left.get("kind") == "Pod":
            self._cache.put_answer(left)

    async def warning_about(self, pod: Pod) -> str:
        """The newest of the cluster's warnings about a pod; empty if there is none."""
        selector = f"involvedObject.name={pod.name},involvedObject.uid={pod.uid},type=Warning"
        try:
            found = await self._client.get(
                self.path("events"), fieldSelector=selector, limit=str(WARNINGS_MAX)
            )
        except ApiError as problem:
            raise unavailable(problem, self._namespace) from problem
        items: list[Json] = found.get("items") or []
        if not items:
            return ""
        newest = max(items, key=lambda event: int(event["metadata"]["resourceVersion"]))
        return one_line(f"{newest.get('reason') or ''}: {newest.get('message') or ''}")

    async def delete(self, kind: str, name: str, options: Json | None = None) -> None:
        """Have one object deleted; it may be gone already."""
        try:
            await self._client.delete(self.path(kind, name), options)
        except ApiError as problem:
            raise unavailable(problem, self._namespace) from problem


def _named(thing: Json) -> str:
    return f"{thing['kind']} {thing['metadata']['name']}"


async def run_all(calls: Iterable[Awaitable[None]]) -> None:
    """Make all calls in parallel; then raise the worst failure: a denial, then a refusal."""
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    order = (RuntimeDeniedError, LaunchRefusedError)
    failures.sort(
        key=lambda failure: next(
            (rank for rank, kind in enumerate(order) if isinstance(failure, kind)), len(order)
        )
    )
    if failures:
        raise failures[0]


def refusal(
    problem: ApiError, what: str, namespace: str
) -> LaunchRefusedError | RuntimeUnavailableError:
    """The error to raise after creating ``what`` (kind and name) was refused."""
    text = f"{what}: {problem.message}"
    if problem.status in INVALID:
        return _refused(Fault.INVALID_POD, text)
    if problem.status == CONFLICT:
        return _refused(Fault.NAME_TAKEN, text)
    if problem.status == FORBIDDEN and not any(sign in problem.message for sign in NOT_NOW):
        over = QUOTA in problem.message
        return _refused(Fault.OVER_QUOTA if over else Fault.NOT_ADMITTED, text)
    return unavailable(problem, namespace)


def name_taken(what: str) -> LaunchRefusedError:
    """The error if a foreign object has the name."""
    return _refused(Fault.NAME_TAKEN, f"{what} is not of this run")


def _refused(fault: Fault, text: str) -> LaunchRefusedError:
    return LaunchRefusedError(fault, describe(fault, text))
