"""The options of ``shiftwork submit`` that set a task's fields: their parameters and their values.

``task_options.py`` (generated) lists them; this module converts their texts to values.
"""

from __future__ import annotations

import functools
import inspect
import os
from pathlib import Path
from typing import Any, Callable, List, Optional

import typer

from shiftwork.cli import complete, input_files, parse, server_choices
from shiftwork.cli.failures import usage
from shiftwork.cli.task_options import TASK_OPTIONS, TaskOption

COMPLETIONS: dict[str, Callable[..., Any]] = {
    "--priority": complete.priorities,
    "--group": complete.groups,
    "--contract": complete.contracts,
    "--mode": complete.run_modes,
    "--preempt": complete.preemptions,
}
# Mappings that replace the file's; others are added to it.
WHOLE = frozenset({"document"})


def with_task_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each field that has one. They stand after its first parameter;
    it gets those that were given as ``options``, by their first names."""
    first, *others = [
        parameter
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != "options"
    ]
    made = {f"option_{number}": option for number, option in enumerate(TASK_OPTIONS)}

    @functools.wraps(command)
    def run(**given: Any) -> None:  # noqa: ANN401 - as the command's
        options = {option.flags[0]: given.pop(name) for name, option in made.items()}
        for flag, value in options.items():
            if value == "":
                fix = "give a value, or leave the option out"
                raise usage(f"{flag}: the value is empty", where=flag, fix=fix)
        command(
            options={flag: value for flag, value in options.items() if value not in (None, [])},
            **given,
        )

    parameters = [first, *(_parameter(name, option) for name, option in made.items()), *others]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    del run.__wrapped__
    return run


def _parameter(name: str, option: TaskOption) -> inspect.Parameter:
    """One option as Typer reads it from a function's signature."""
    settings: dict[str, Any] = {"help": option.help}
    if option.metavar:
        settings["metavar"] = option.metavar
    if option.least is not None:
        settings["min"] = option.least
    if option.flags[0] in COMPLETIONS:
        settings["autocompletion"] = COMPLETIONS[option.flags[0]]
    kinds: dict[str, Any] = {"number": int, "document": Path}
    kind: Any = Optional[List[str]] if option.repeated else Optional[kinds.get(option.read, str)]
    default = typer.Option(None, *option.flags, **settings)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def set_field(body: dict[str, Any], option: TaskOption, value: Any) -> None:  # noqa: ANN401
    """Set the option's field ``a.b`` of a document. A mapping is added to the one that is there."""
    read = READERS[option.read](value, option.flags[0])
    *above, last = option.field.split(".")
    for name in above:
        body[name] = body = dict(parse.fields(body.get(name)))
    if parse.fields(read) and option.read not in WHOLE:
        body[last] = {**parse.fields(body.get(last)), **parse.fields(read)}
    else:
        body[last] = read


def _as_given(value: Any, option: str) -> Any:  # noqa: ANN401 - the option's own type
    del option
    return value


def _folder(value: str, option: str) -> str:
    del option
    return os.path.abspath(value)  # noqa: PTH100 - keeps links


def _mode(value: str, option: str) -> dict[str, str]:
    word, colon, signal = value.partition(":")
    if word not in server_choices.PREEMPTIONS or (
        colon and not (word == "signal" and signal.isalnum())
    ):
        raise usage(
            f"{value!r} is no way to preempt",
            where=option,
            fix="choose sdk, signal, signal:TERM (any signal's name) or kill",
        )
    return {"mode": word, "signal": signal} if signal else {"mode": word}


def _document(path: Path, option: str) -> dict[str, Any]:
    del option
    # A whole Pod is accepted, too; its apiVersion and kind are not needed.
    found = input_files.document(path, "pod template", "spec: {...}")
    return {name: part for name, part in found.items() if name not in ("apiVersion", "kind")}


# How the text of an option becomes the value of its field.
READERS: dict[str, Callable[[Any, str], Any]] = {
    "text": _as_given,
    "number": _as_given,
    "pairs": parse.pairs,
    "taint": parse.taints,
    "priority": parse.priority,
    "contract": parse.contract,
    "runmode": parse.run_mode,
    "duration": parse.duration,
    "size": parse.size,
    "folder": _folder,
    "mode": _mode,
    "document": _document,
}
