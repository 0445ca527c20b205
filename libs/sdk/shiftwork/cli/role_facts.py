"""What a task runs and with what, as `show` and `submit --dry-run` print it."""

from __future__ import annotations

from typing import Any

from shiftwork.cli import parse, render


def facts(task: dict[str, Any]) -> list[tuple[str, str]]:
    """The command, what the ranks get, and what single roles have of their own."""
    roles = [parse.fields(each) for each in parse.listed(task.get("roles"))]
    found = [
        ("command", _commands(roles)),
        ("contract", str(task.get("contract") or "")),
        ("resources", _amounts(task)),
        ("pod", _pod(parse.fields(task.get("pod")))),
        ("directory", str(task.get("working_directory") or "")),
    ]
    return [*found, *((f"role {role.get('name')}", _own(role)) for role in roles)]


def _commands(roles: list[dict[str, Any]]) -> str:
    if len(roles) == 1:
        return _command(roles[0])
    return "; ".join(f"{r['name']} x{r['replicas']}: {_command(r)}" for r in roles)


def _command(role: dict[str, Any]) -> str:
    command, args = parse.listed(role.get("command")), parse.listed(role.get("args"))
    words = command or ["(the image's)"]
    return " ".join(map(str, [*words, *args]))


def _own(role: dict[str, Any]) -> str:
    """What a role has of its own beside its size and command; empty for most."""
    parts = [
        role.get("working_directory") and f"in {role['working_directory']}",
        role.get("image") or "",
        _amounts(role),
        _pod(parse.fields(role.get("pod"))),
    ]
    return ", ".join(str(part) for part in parts if part)


def _amounts(given: dict[str, Any]) -> str:
    """CPUs and memory of each replica: what is planned, and the limit where that is another."""
    cpus = _amount(given.get("cpus_request"), given.get("cpus"), "{:g} CPUs")
    wanted, limit = given.get("memory_request_bytes"), given.get("memory_bytes")
    return ", ".join(filter(None, (cpus, _amount(_gib(wanted), _gib(limit), "{:g} GiB"))))


def _gib(size: int | None) -> float | None:
    return None if size is None else round(size / (1 << 30), 3)


def _amount(wanted: float | None, limit: float | None, form: str) -> str:
    if wanted is None:
        return "" if limit is None else form.format(limit)
    most = "no limit" if limit is None else f"limit {limit:g}"
    return f"{form.format(wanted)} ({most})"


def _pod(pod: dict[str, Any]) -> str:
    """What was asked of its pods, in one line."""
    parts = [
        pod.get("image") or "",
        *([f"pulled {pod['image_pull_policy']}"] if pod.get("image_pull_policy") else []),
        *(f"mounts {name}" for name in parse.listed(pod.get("storage"))),
        *(f"{name}={amount}" for name, amount in parse.fields(pod.get("resources")).items()),
        *([f"shm {pod['shm_bytes']}"] if pod.get("shm_bytes") else []),
        *parse.listed(pod.get("capabilities")),
        *(["a template"] if pod.get("template") else []),
    ]
    return ", ".join(word for word in parts if word)


def show_warnings(task: dict[str, Any]) -> None:
    """Write what the submission warns of to standard error."""
    for each in warnings(task):
        render.warning(each)


def warnings(task: dict[str, Any]) -> list[str]:
    """The warnings of the submission, a line each."""
    found = map(parse.fields, parse.listed(task.get("warnings")))
    return [f"{each.get('field')}: {each.get('message')}" for each in found]
