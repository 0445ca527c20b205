"""Errors for command lines that Typer cannot parse: what is wrong, with the value, and the fix.

Called by ``main.run``. Typer's errors are distinguished by the names of their classes, because
they are Click's own or Typer's copies of them, depending on the version of Typer.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Mapping, Sequence

from shiftwork.cli import guide, input_files, typed
from shiftwork.cli.failures import Failure, usage

# So many commands are listed.
CHOICES_MAX = 8
_NUMBERS: Mapping[Any, str] = {int: "whole number", float: "number"}
_CLICK_TYPES: Mapping[str, Any] = {"integer": int, "float": float}


def failure_of(error: Any, words: Sequence[str]) -> Failure:  # noqa: ANN401 - Typer's own
    """The error as a failure. ``words``: everything typed before ``--``."""
    line = typed.line_of(error.ctx, words)
    known = _KINDS.get(type(error).__name__, _other)
    found = known(error, line) if error.ctx is not None else usage(error.format_message())
    if not found.fix:
        path = error.ctx.command_path if error.ctx is not None else "shiftwork"
        found.fix = f"`{path} --help` shows what is understood"
    return typed.translated(found, line)


def _no_option(error: Any, line: typed.Line) -> Failure:  # noqa: ANN401 - Typer's own
    known = [opt for param in typed.params_of(error.ctx) for opt in param.opts]
    if error.option_name in known:
        # One of all commands' options, at the end of the line.
        return _no_value(error, line)
    meant = guide.suggestion(error.option_name, known)
    fix = f"`{error.ctx.command_path} --help` shows what is understood"
    what = f"no such option: {error.option_name}"
    return usage(what, where=error.option_name, fix=f"{meant} {fix}".strip())


def _no_value(error: Any, line: typed.Line) -> Failure:  # noqa: ANN401 - Typer's own
    del line
    option = error.option_name
    return usage(f"{option}: the value is missing", where=option, fix=f"write: {option} VALUE")


def _missing(error: Any, line: typed.Line) -> Failure:  # noqa: ANN401 - Typer's own
    del line
    if error.param is None:
        return usage(error.format_message())
    name = typed.name_of(error.param)
    shown = error.param.metavar or name
    return usage(f"{shown} is missing", where=name, fix=f"write: {_form(error.ctx)}")


def _bad_value(error: Any, line: typed.Line) -> Failure:  # noqa: ANN401 - Typer's own
    """A value that has another type than the option, or lies beyond its bounds."""
    param = error.param
    if param is None:
        return _other(error, line)
    name = typed.name_of(param)
    value = line.values.get(name, "")
    label = f"{name} {value}".rstrip()
    own = getattr(param, "type_descriptor", None)
    bounds = own.parameter_info if own is not None else param.type
    kind = own.annotation if own is not None else _CLICK_TYPES.get(param.type.name.split()[0])
    if kind in _NUMBERS:
        wanted = f"a {_NUMBERS[kind]}{_range(bounds)}"
        return usage(f"{label}: is not {wanted}", where=name, fix=f"give {wanted}")
    if "does not exist" in error.message:
        return usage(f"{label}: there is no such file", where=name, fix=input_files.advice(value))
    what, _, fix = error.message.rstrip(".").partition("; ")
    return usage(f"{label}: {what}", where=name, fix=fix)


def _range(bounds: Any) -> str:  # noqa: ANN401 - Typer's own
    low, high = getattr(bounds, "min", None), getattr(bounds, "max", None)
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}"
    if low is not None:
        return f" of {low:g} or more"
    return "" if high is None else f" of {high} or less"


def _other(error: Any, line: typed.Line) -> Failure:  # noqa: ANN401 - Typer's own
    """Errors that older versions distinguish only by their texts."""
    extra = re.search(r"unexpected extra arguments? ?(?:\(s\) )?\((.*)\)", error.message)
    if extra:
        options = [opt for param in error.ctx.command.params for opt in param.opts]
        meant = f"did you mean --{extra[1]}? " if f"--{extra[1]}" in options else ""
        fix = f"{meant}write: {_form(error.ctx)}"
        return usage(f"{extra[1]}: this argument is too much", fix=fix)
    command = re.match("No such command '(.*?)'", error.message)
    if command:
        return _no_command(error, command[1])
    del line
    what, _, fix = error.format_message().partition("; ")
    return usage(what, fix=fix)


def _no_command(error: Any, word: str) -> Failure:  # noqa: ANN401 - Typer's own
    ctx = error.ctx
    known = ctx.command.list_commands(ctx)
    others = guide.ALIASES if ctx.parent is None else ()
    fix = guide.meant(word, [*known, *others])
    if not fix and len(known) <= CHOICES_MAX:
        fix = f"choose of {', '.join(known)}"
    return usage(f"there is no command {word!r}", fix=fix)


def _form(ctx: Any) -> str:  # noqa: ANN401 - Typer's own
    """How the command is written, with the options that it needs."""
    needed = [
        f"{typed.name_of(each)} {each.metavar or 'VALUE'}"
        for each in ctx.command.params
        if each.param_type_name == "option" and each.required
    ]
    arguments = [each for each in ctx.command.params if each.param_type_name == "argument"]
    shown = [str(each.metavar or typed.name_of(each)) for each in arguments]
    return " ".join([ctx.command_path, *needed, *shown])


_KINDS: Mapping[str, Callable[[Any, typed.Line], Failure]] = {
    "NoSuchOption": _no_option,
    "BadOptionUsage": _no_value,
    "MissingParameter": _missing,
    "BadParameter": _bad_value,
}
