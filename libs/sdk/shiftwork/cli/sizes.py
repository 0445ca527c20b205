"""The size of a task's gang, in short for tables and in words."""

from __future__ import annotations

from typing import Any

from shiftwork.cli import parse, render

# The fields of a role that give it a size of its own, beside auxiliary.
SIZE_FIELDS = ("gpus", "cpus", "memory_bytes", "cpus_request", "memory_request_bytes", "spread")


def short(task: dict[str, Any]) -> str:
    """``2x8``: nodes and GPUs on each; ``2`` for whole nodes, ``2x0`` for CPU only.

    ``1x0+4x1``: replicas and GPUs of each, for roles with sizes of their own.
    """
    common = task.get("gpus_per_node")
    roles = _roles(task)
    if any(map(_has_own_size, roles)):
        return "+".join(_times(role["replicas"], _gpus(role, common)) for role in roles)
    return _times(task["nodes"], common)


def long(task: dict[str, Any]) -> str:
    """``2 x 8 GPUs``, ``1 whole node``; by role for roles with sizes of their own."""
    common = task.get("gpus_per_node")
    roles = _roles(task)
    if not any(map(_has_own_size, roles)):
        return _in_words(task["nodes"], common)
    return ", ".join(
        f"{role['name']} {_in_words(role['replicas'], _gpus(role, common))}" for role in roles
    )


def _times(count: int, gpus: int | None) -> str:
    return str(count) if gpus is None else f"{count}x{gpus}"


def _in_words(count: int, gpus: int | None) -> str:
    if gpus is None:
        return render.counted(count, "whole node")
    return f"{count} x {render.counted(gpus, 'GPU')}"


def _roles(task: dict[str, Any]) -> list[dict[str, Any]]:
    return [parse.fields(role) for role in parse.listed(task.get("roles"))]


def _has_own_size(role: dict[str, Any]) -> bool:
    """True if a role does not simply have the size of its task."""
    return bool(role.get("auxiliary")) or any(role.get(field) is not None for field in SIZE_FIELDS)


def _gpus(role: dict[str, Any], common: int | None) -> int | None:
    """The GPUs of each replica; None for whole nodes."""
    gpus: int | None = role.get("gpus")
    if gpus is not None:
        return gpus
    return 0 if role.get("auxiliary") else common
