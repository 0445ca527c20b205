"""Ensures one leader: an object of the cluster holds the highest epoch, which is read before every
order. Used by ``runtime.py``.

A check that begins after an order came holds for all orders that came before it began, so many
orders at once cost one read.
"""

from __future__ import annotations

import asyncio
from typing import Any

from libs.kube.client import (
    CONFLICT,
    NOT_FOUND,
    ApiError,
    KubeClient,
    namespaced,
)
from libs.pods.kubernetes_names import EPOCH_MAP, MANAGED_BY, MANAGER
from services.launcher.runtimes.port import (
    RuntimeDeniedError,
    RuntimeUnavailableError,
    way_back,
)

Json = dict[str, Any]
EPOCH = "epoch"
TRIES_MAX = 10


class EpochFence:
    """The epoch of the launcher that commands this namespace."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._epoch, self._taken = 0, False
        self._reading = asyncio.Lock()
        # The number of reads that began, the last one that was answered, and its result.
        self._begun, self._answered, self._held = 0, 0, 0

    @property
    def taken(self) -> bool:
        """Whether the cluster knows our epoch."""
        return self._taken

    def lead(self, epoch: int) -> None:
        """Orders are given for this epoch from now on."""
        self._epoch, self._taken = epoch, False

    async def check(self) -> None:
        """Raise ``RuntimeDeniedError`` if a newer leader has written its epoch."""
        if not self._taken:
            await self._take()
            return
        before = self._begun
        async with self._reading:
            if self._answered <= before:
                self._begun += 1
                number = self._begun
                self._held = await self._read()
                self._answered = number
            held = self._held
        if held == 0:
            # It was deleted.
            self._taken = False
            await self._take()
        elif held > self._epoch:
            raise _newer(held)

    async def _take(self) -> None:
        """Write our epoch, unless the object has a higher one."""
        async with self._reading:
            for _ in range(TRIES_MAX):
                if self._taken or await self._try_take():
                    self._taken = True
                    return
        raise RuntimeUnavailableError(f"ConfigMap {EPOCH_MAP} keeps changing")

    async def _try_take(self) -> bool:
        path = namespaced(self._namespace, "configmaps", EPOCH_MAP)
        try:
            found = await self._client.get(path)
        except ApiError as problem:
            if problem.status != NOT_FOUND:
                raise unavailable(problem, self._namespace) from problem
            return await self._create()
        held = _epoch_of(found)
        if held > self._epoch:
            raise _newer(held)
        if held == self._epoch:
            return True
        version = found["metadata"]["resourceVersion"]
        try:
            await self._client.patch(
                path,
                {"metadata": {"resourceVersion": version}, "data": {EPOCH: str(self._epoch)}},
            )
        except ApiError as problem:
            if problem.status in (CONFLICT, NOT_FOUND):
                return False
            raise unavailable(problem, self._namespace) from problem
        return True

    async def _create(self) -> bool:
        thing: Json = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": EPOCH_MAP, "labels": {MANAGED_BY: MANAGER}},
            "data": {EPOCH: str(self._epoch)},
        }
        try:
            await self._client.create(namespaced(self._namespace, "configmaps"), thing)
        except ApiError as problem:
            if problem.exists:
                return False
            raise unavailable(problem, self._namespace) from problem
        return True

    async def _read(self) -> int:
        """The epoch in the object; 0 if there is none."""
        try:
            found = await self._client.get(namespaced(self._namespace, "configmaps", EPOCH_MAP))
        except ApiError as problem:
            if problem.status == NOT_FOUND:
                return 0
            raise unavailable(problem, self._namespace) from problem
        return _epoch_of(found)


def _epoch_of(thing: Json) -> int:
    data: Json = thing.get("data") or {}
    text = str(data.get(EPOCH, "0"))
    return int(text) if text.isdecimal() else 0


def _newer(epoch: int) -> RuntimeDeniedError:
    return RuntimeDeniedError(
        f"a newer leader (epoch {epoch}) commands this cluster; {way_back(epoch)}"
    )


def unavailable(problem: ApiError, namespace: str) -> RuntimeUnavailableError:
    """The error for a refusal that no run has caused, with the fix."""
    if problem.status == NOT_FOUND:
        return RuntimeUnavailableError(
            f"{problem.message}; is there a namespace {namespace}? Create it, or install the chart"
        )
    return RuntimeUnavailableError(
        f"the cluster refuses the launcher ({problem.status}): {problem.message};"
        " see `shiftwork doctor`"
    )
