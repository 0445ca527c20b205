"""What a process gets from the platform at its start: the context file, else the environment.

Read once by ``training``. The launcher writes the file for each rank; the environment has the same
values, so that programs and wrappers which keep only one of the two still work.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import Any, Mapping, cast

FIXED_PATH = "/etc/shiftwork/context.json"
"""The path of the file when ``SHIFTWORK_CONTEXT`` is not set."""

FILE_BYTES_MAX = 1_048_576


@dataclass(frozen=True)
class Checkpoint:
    """A durable save of a task: what ``resume_from`` returns."""

    step: int
    uri: str
    digest: str | None
    attempt: int
    # The earlier task that saved it, if this one goes on with that; else empty.
    task: str = ""


@dataclass(frozen=True)
class Context:
    """The process's place in its task. Without ``url`` and ``run_token`` it is off the platform."""

    task: str = ""
    attempt: int = 0
    node: str = ""
    rank: int | None = None
    world_size: int | None = None
    url: str = ""
    run_token: str = ""
    resume_from: Checkpoint | None = None
    fence_after_seconds: float | None = None
    restarts: int = 0
    problem: str = ""
    """Why a part could not be read, for one warning; empty if all is well."""

    @property
    def on_platform(self) -> bool:
        """True if the process runs on the platform."""
        return bool(self.url and self.run_token)


_ADDRESS = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[^\s/:\[\]@]+)(:\d{1,5})?(/\S*)?")

_VARIABLES = {
    "task": "SHIFTWORK_TASK",
    "attempt": "SHIFTWORK_ATTEMPT",
    "node": "SHIFTWORK_NODE",
    "rank": "SHIFTWORK_RANK",
    "world_size": "SHIFTWORK_WORLD_SIZE",
    "url": "SHIFTWORK_URL",
    "run_token": "SHIFTWORK_RUN_TOKEN",
    "fence_after_seconds": "SHIFTWORK_FENCE_AFTER_SECONDS",
    "restarts": "SHIFTWORK_RESTARTS",
}


def read(environ: Mapping[str, str], fixed_path: str) -> Context:
    """The context of a process with this environment. Never raises: what is unreadable is absent.

    A field that the file holds wins, null included; the environment fills in the rest.
    """
    given = environ.get("SHIFTWORK_CONTEXT")
    fields, problem = _file(given or fixed_path, required=bool(given))
    for field, variable in _VARIABLES.items():
        if field not in fields and environ.get(variable):
            fields[field] = environ[variable]
    if "resume_from" not in fields and environ.get("SHIFTWORK_RESUME_FROM"):
        fields["resume_from"] = _decoded(environ["SHIFTWORK_RESUME_FROM"])
    try:
        return _context(fields, problem)
    except (KeyError, TypeError, ValueError) as error:
        return Context(problem=f"the task's context is malformed ({error}); working as if alone")


def process_rank(context: Context, environ: Mapping[str, str]) -> int:
    """This process's rank: torchrun's inside torchrun, else the replica's, else ``RANK`` or 0."""
    return _counted("RANK", context.rank, environ, 0)


def process_world_size(context: Context, environ: Mapping[str, str]) -> int:
    """How many ranks there are, counted as ``process_rank`` counts; 1 for a process alone."""
    return _counted("WORLD_SIZE", context.world_size, environ, 1)


def _counted(variable: str, given: int | None, environ: Mapping[str, str], alone: int) -> int:
    text = environ.get(variable, "")
    inside_torchrun = "TORCHELASTIC_RUN_ID" in environ
    if text.isdecimal() and (inside_torchrun or given is None):
        return int(text)
    return alone if given is None else given


def _file(path: str, required: bool) -> tuple[dict[str, Any], str]:
    try:
        with open(path, encoding="utf-8") as stream:  # noqa: PTH123 - pathlib doubles the import
            found: Any = json.loads(stream.read(FILE_BYTES_MAX))
    except FileNotFoundError:
        return {}, f"the context file {path} does not exist" if required else ""
    except (OSError, ValueError) as error:
        return {}, f"the context file {path} cannot be read ({error})"
    if not isinstance(found, dict):
        return {}, f"the context file {path} holds no JSON object"
    return cast("dict[str, Any]", found), ""


def _decoded(text: str) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError("SHIFTWORK_RESUME_FROM is not JSON") from error


def _context(fields: dict[str, Any], problem: str) -> Context:
    fence = fields.get("fence_after_seconds")
    url = str(fields.get("url") or "").rstrip("/")
    if url and not _ADDRESS.fullmatch(url):
        raise ValueError(f"url {url!r} is not an http:// or https:// address")
    return Context(
        task=str(fields.get("task") or ""),
        attempt=int(fields.get("attempt") or 0),
        node=str(fields.get("node") or ""),
        rank=_integer(fields.get("rank")),
        world_size=_integer(fields.get("world_size")),
        url=url,
        restarts=_integer(fields.get("restarts")) or 0,
        run_token=str(fields.get("run_token") or ""),
        resume_from=_checkpoint(fields.get("resume_from")),
        fence_after_seconds=float(fence) if fence else None,
        problem=problem,
    )


def _integer(value: Any) -> int | None:  # noqa: ANN401 - any JSON
    return None if value is None else int(value)


def _checkpoint(value: Any) -> Checkpoint | None:  # noqa: ANN401 - any JSON
    if not value:
        return None
    return Checkpoint(
        step=int(value["step"]),
        uri=str(value["uri"]),
        digest=str(value["digest"]) if value.get("digest") else None,
        attempt=int(value.get("attempt") or 0),
        task=str(value.get("task") or ""),
    )


def of_this_process() -> Context:
    """The context of the calling process."""
    return read(os.environ, FIXED_PATH)
