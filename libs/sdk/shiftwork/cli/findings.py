"""What rules found about a task, as lines for people."""

from __future__ import annotations

from typing import Any

from shiftwork.cli import parse, render
from shiftwork.cli.client import Api
from shiftwork.cli.failures import Failure


def action(found: dict[str, Any]) -> str:
    """An action that follows a finding, and how it went."""
    name = str(found["action"]).replace("_", " ")
    detail = f" ({found['detail']})" if found["detail"] else ""
    return f"{name}: {str(found['outcome']).replace('_', ' ')}{detail}"


def facts(api: Api, task: dict[str, Any]) -> list[tuple[str, str]]:
    """Why a task is abnormal, for ``show`` and ``explain``: lines with a name. The names of the
    rules alone, if the server does not say more now."""
    names = parse.listed(task.get("abnormal"))
    if not names:
        return []
    try:
        found = api.get("/v1/abnormal", {"task_id": task["id"]})["items"]
    except Failure:
        return [("abnormal", ", ".join(names))]
    lines = [
        text
        for each in found
        for text in (
            f"{each['rule']}: {each['detail']} (since {render.timestamp(each['began_at'])})",
            f"next: {each['suggestion']}",
            *(action(step) for step in each["actions"]),
        )
    ]
    return [("abnormal" if number == 0 else "", text) for number, text in enumerate(lines)]
