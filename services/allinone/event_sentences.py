"""One sentence about an event of a task, as the demos print it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Data = Mapping[str, Any]


def _nodes(data: Data) -> str:
    return ", ".join(placement["node_id"] for placement in data["placements"])


def _exit(data: Data) -> str:
    kind = data["exit"]["kind"].removeprefix("EXIT_KIND_").lower()
    return f"processes gone, exit observed: {kind} ({data['exit']['detail']})"


def _resumed(data: Data) -> str:
    checkpoint: Any = data.get("resume_from")
    step = checkpoint["step"] if checkpoint else 0
    return f"resumed on {_nodes(data)} as attempt {data['attempt']} from step {step}"


_SENTENCES: Mapping[str, Callable[[Data], str]] = {
    "task.submitted": lambda _: "submitted",
    "run.assigned": lambda data: f"assigned to {_nodes(data)}",
    "run.started": lambda data: f"running on {_nodes(data)}",
    "run.delayed": lambda data: f"waits: {data['detail']}",
    "run.preemption_requested": lambda _: "asked to save and hand its nodes over",
    "run.checkpoint_saved": lambda data: f"checkpoint saved at step {data['checkpoint']['step']}",
    "run.exited": _exit,
    "run.resumed": _resumed,
}


def sentence(kind: str, data: Data) -> str | None:
    """The sentence about an event of this type; None if the demos print none."""
    describe = _SENTENCES.get(kind)
    return None if describe is None else describe(data)
