"""What a task runs and with what, as `show` and `submit --dry-run` print it."""

from __future__ import annotations

from typing import Any, Callable

from shiftwork.cli import charts, parse, render


def facts(task: dict[str, Any]) -> list[tuple[str, str]]:
    """The command, what the ranks get, and what single roles have of their own."""
    roles = [parse.fields(each) for each in parse.listed(task.get("roles"))]
    found = [
        ("command", _commands(roles)),
        ("contract", str(task.get("contract") or "")),
        ("resources", _amounts(task)),
        ("pod", _pod(parse.fields(task.get("pod")))),
        ("directory", str(task.get("working_directory") or "")),
        ("starts after", _of_roles(roles, _starts_after)),
        ("ready", _of_roles(roles, _ready)),
        ("resume", _of_roles(roles, _resume)),
        ("debug", _of_roles(roles, _debug)),
        ("completion", _completion(parse.fields(task.get("completion")))),
    ]
    return [*found, *((f"role {role.get('name')}", _own(role, task)) for role in roles)]


def _commands(roles: list[dict[str, Any]]) -> str:
    if len(roles) == 1:
        return _command(roles[0])
    return "; ".join(f"{r['name']} x{r['replicas']}: {_command(r)}" for r in roles)


def _command(role: dict[str, Any]) -> str:
    command, args = parse.listed(role.get("command")), parse.listed(role.get("args"))
    words = command or ["(the image's)"]
    return " ".join(map(str, [*words, *args]))


def _of_roles(roles: list[dict[str, Any]], form: Callable[[dict[str, Any]], str]) -> str:
    """``worker: ...; ps: ...`` for the roles of which there is something to say."""
    found = ((role.get("name"), form(role)) for role in roles)
    return "; ".join(f"{name}: {text}" for name, text in found if text)


def _starts_after(role: dict[str, Any]) -> str:
    conditions = map(parse.fields, parse.listed(role.get("starts_after")))
    return ", ".join(f"{each.get('role')} is {each.get('condition')}" for each in conditions)


def _ready(role: dict[str, Any]) -> str:
    """How the platform learns that a rank is ready, and how long that may take."""
    probe = parse.fields(role.get("ready"))
    if not probe:
        return ""
    if probe.get("port"):
        what = f"port {probe['port']}{probe.get('path') or ''} every {probe['period_seconds']:g} s"
    else:
        what = "when its program says so"
    return f"{what}, within {probe['within_seconds']:g} s"


def _resume(role: dict[str, Any]) -> str:
    """What later attempts do differently. Values of variables may be secret."""
    given = parse.fields(role.get("resume"))
    command = " ".join(map(str, parse.listed(given.get("command"))))
    names = ", ".join(sorted(parse.fields(given.get("env"))))
    return f"{command}{' with ' if command and names else ''}{names}"


def _debug(role: dict[str, Any]) -> str:
    """What its ranks run in debug mode, where that is not to wait."""
    program = parse.fields(role.get("debug"))
    return " ".join(
        map(str, [*parse.listed(program.get("command")), *parse.listed(program.get("args"))])
    )


def _completion(rules: dict[str, Any]) -> str:
    """``success: chief[0]; failure: worker[2+]``; several rules of one kind are alternatives."""
    given = ((name, parse.listed(rules.get(name))) for name in ("success", "failure"))
    return "; ".join(f"{name}: {' or '.join(each)}" for name, each in given if each)


def _own(role: dict[str, Any], task: dict[str, Any]) -> str:
    """What a role has of its own beside its size and command; empty for most."""
    parts = [
        role.get("working_directory") and f"in {role['working_directory']}",
        role.get("image") or "",
        _amounts(role, task),
        _pod(parse.fields(role.get("pod"))),
    ]
    return ", ".join(str(part) for part in parts if part)


def _amounts(given: dict[str, Any], task: dict[str, Any] | None = None) -> str:
    """CPUs and memory of each replica: what is planned, and the limit where that is another.

    With a task, what a role gives of each pair, and what it leaves out of it as the task says.
    """
    parts: list[str] = []
    for form, request, limit in (
        (_cpus, "cpus_request", "cpus"),
        (_memory, "memory_request_bytes", "memory_bytes"),
    ):
        wanted, most = given.get(request), given.get(limit)
        if wanted is None and most is None:
            continue
        wanted = (task or {}).get(request) if wanted is None else wanted
        most = (task or {}).get(limit) if most is None else most
        if wanted is None:
            parts.append(form(most))
        else:
            parts.append(
                f"{form(wanted)} ({'no limit' if most is None else f'limit {form(most)}'})"
            )
    return ", ".join(parts)


def _cpus(count: Any) -> str:  # noqa: ANN401 - a number in JSON
    return f"{count:g} CPU" + ("" if count == 1 else "s")


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


def _memory(size: Any) -> str:  # noqa: ANN401 - a number in JSON
    return charts.size_text(size)
