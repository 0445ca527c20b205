"""Errors in the terms of the command line that was typed.

The server's errors name the API's fields, values and routes. People typed options, aliases of
options, values such as ``9h``, and commands. ``session.report`` applies ``translated`` to every
failure of every command, so that no command has to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Sequence

from shiftwork.cli import input_files
from shiftwork.cli.failures import Failure, objects

# The command that does what a route does. The server's messages name routes, because the API is
# for programs, too. A word in braces is whatever the message has in its place.
COMMANDS: Mapping[str, str] = {
    "GET /v1/tasks": "shiftwork ls --all",
    "POST /v1/tasks/{id}/retry": "shiftwork retry {id}",
    "POST /v1/tasks/{id}/continue": "shiftwork continue {id}",
    "PUT /v1/tasks/{id}/goal": "shiftwork stop {id}",
    "POST /v1/tasks/{id}/mode": "shiftwork debug {id}",
    "GET /v1/nodes": "shiftwork nodes",
    "GET /v1/groups": "shiftwork group ls",
    "GET /v1/policies": "shiftwork policy show",
    "PUT /v1/quotas": "shiftwork quota set --grant --user=USER --gpus=N",
    "GET /v1/quotas/explain": "shiftwork quota explain",
    "GET /v1/quotas": "shiftwork quota ls",
    "GET /v1/users": "shiftwork user ls",
    "POST /v1/users": "shiftwork user add NAME",
    "PATCH /v1/users/{name}": "shiftwork user set {name} --team=TEAM --role=ROLE",
    "PATCH /v1/users/{name} with another team": "shiftwork user set {name} --team=TEAM",
    "PATCH /v1/users/{name} with archived: true": "shiftwork user set {name} --archive",
    "PATCH /v1/users/{name} with archived: false": "shiftwork user set {name} --unarchive",
    "PATCH /v1/users/{name} with disabled: true": "shiftwork user set {name} --disable",
    "PATCH /v1/users/{name} with disabled: false": "shiftwork user set {name} --enable",
    "PATCH /v1/users/{name} with another default_group": (
        "shiftwork user set {name} --default-group=GROUP"
    ),
    "PATCH /v1/users/{name} with another default_priority": (
        "shiftwork user set {name} --default-priority=PRIORITY"
    ),
    "PATCH /v1/teams/{name} with another default_group": (
        "shiftwork team set {name} --default-group=GROUP"
    ),
    "PATCH /v1/teams/{name} with another default_priority": (
        "shiftwork team set {name} --default-priority=PRIORITY"
    ),
    "PUT /v1/users/{name}/password": "shiftwork user passwd {name}",
    "GET /v1/login": "shiftwork login",
    "GET /v1/teams": "shiftwork team ls",
    "POST /v1/teams": "shiftwork team add NAME",
    "GET /v1/tokens": "shiftwork token ls",
    "POST /v1/tokens": "shiftwork token create",
    "DELETE /v1/tokens/{id}": "shiftwork token revoke {id}",
}
# Suffixes of fields that their options do not have.
_ENDINGS = ("", "_id", "_seconds", "_bytes")
_SECONDS = re.compile(r"\b(\d+(?:\.\d+)?) (?:s|seconds)\b")
_UNITS = (("d", 86_400), ("h", 3600), ("m", 60))
# An upper limit of so many units leaves out what is smaller.
_FEW = 10
_HIDDEN = "(not shown)"
# Fields that messages give with a value, and the flag that gives the field this value.
FLAGS: Mapping[str, str] = {
    "archived: true": "--archive",
    "archived: false": "--unarchive",
    "disabled: true": "--disable",
    "disabled: false": "--enable",
    "force: true": "--force",
    "remove: true": "--remove",
    "unlimited: true": "--unlimited",
}
# Options whose values are never repeated in messages.
_SECRET = frozenset({"--token", "--env"})


@dataclass(frozen=True)
class Line:
    """The parts of a command line that messages use. Options have their first long names."""

    # The API's fields, each with its option or argument.
    fields: Mapping[str, str]
    # Options by another name: as they were typed.
    spelled: Mapping[str, str]
    # Options that were typed once: their values.
    values: Mapping[str, str]
    # Every option of the command, by each of its names, and those of them that take no value.
    options: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()


def line_of(ctx: Any, words: Sequence[str]) -> Line:  # noqa: ANN401 - Typer's own context
    """The line of the command that ``ctx`` is for. ``words``: everything typed before ``--``."""
    fields: dict[str, str] = {}
    spelled: dict[str, str] = {}
    values: dict[str, str] = {}
    options: set[str] = set()
    flags: set[str] = set()
    for param in params_of(ctx):
        name = name_of(param)
        for known in dict.fromkeys((_field(name), str(param.name))):
            for ending in _ENDINGS:
                fields.setdefault(known + ending, name)
        if not name.startswith("-"):
            continue
        options.update(param.opts)
        flags.update([name] if getattr(param, "is_flag", False) else [])
        given = list(_given(words, param))
        if given and given[-1][0] != name:
            spelled[name] = given[-1][0]
        if len(given) == 1 and given[0][1] and name not in _SECRET:
            values[name] = given[0][1]
    return Line(fields, spelled, values, frozenset(options), frozenset(flags))


def params_of(ctx: Any) -> Iterator[Any]:  # noqa: ANN401 - Typer's own
    """The parameters of a command and of the commands above it."""
    while ctx is not None:
        yield from ctx.command.params
        ctx = ctx.parent


def name_of(param: Any) -> str:  # noqa: ANN401 - Typer's own parameter
    """An option's first long name, or an argument as the help has it: ``--label``, ``TASK``."""
    if param.param_type_name == "option":
        return next((opt for opt in param.opts if opt.startswith("--")), param.opts[0])
    metavar = str(param.metavar or param.name.upper())
    if metavar.startswith("["):
        metavar = metavar.strip("[]")
    return metavar.replace("-- ", "").split(" ")[0].rstrip(".")


def _field(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


def _given(words: Sequence[str], param: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - Typer's
    """Each time that an option stands in the line: as it is written there, and its value."""
    is_flag = getattr(param, "is_flag", False)
    for place, word in enumerate(words):
        head, sign, value = word.partition("=")
        if word in param.opts:
            following = words[place + 1] if place + 1 < len(words) and not is_flag else ""
            yield word, following
        elif sign and head in param.opts:
            yield head, value
        elif word[:2] in param.opts and not word.startswith("--") and not is_flag:
            yield word[:2], word[2:]


# --- a failure --------------------------------------------------------------------------------


def translated(failure: Failure, line: Line) -> Failure:
    """The failure in the terms of this line, with every error of it in ``errors``."""
    terms = _Terms.of(failure, line)
    found = Failure(
        terms.text(failure.what),
        where=terms.spell(failure.where),
        fix=terms.text(failure.fix),
        code=failure.code,
        problem=failure.problem,
        retry_seconds=failure.retry_seconds,
    )
    if failure.problem:
        given = objects(failure.problem.get("errors"))
        errors = [terms.error(each) for each in given]
        if errors:
            _summarize(found, failure, [str(each.get("field") or "") for each in given], errors)
    else:
        errors = [terms.own(found, failure.where)] if found.where or found.fix else []
    found.errors = [each.document() for each in errors]
    return found


def _summarize(
    found: Failure, failure: Failure, fields: Sequence[str], errors: Sequence[_Error]
) -> None:
    """What, where and fix of the server's errors."""
    first, more = errors[0], len(errors) - 1
    if failure.what.startswith(f"{fields[0]}: "):
        found.what = first.sentence() + (f" (and {more} more)" if more else "")
    elif first.fix and found.what.endswith(f"; {first.fix}"):
        # The message has the fix already.
        found.what = found.what[: -len(first.fix) - 2]
    found.fix = "\n         ".join(each.advice(alone=not more) for each in errors)
    of_file = next((each.field for each in errors if not each.option), None)
    if failure.file and of_file is not None:
        found.where = input_files.place(failure.file, of_file)
    elif first.option or first.field:
        found.where = first.option or first.field


@dataclass(frozen=True)
class _Error:
    """One error. ``below``: what of an option it is about, such as the name of a variable."""

    field: str
    option: str
    below: str
    value: str
    message: str
    fix: str
    # True if the message itself names its subject.
    complete: bool = False

    def document(self) -> dict[str, str]:
        names = ("field", "option", "value", "message", "fix")
        return {name: getattr(self, name) for name in names}

    @property
    def _label(self) -> str:
        return f"{self.option} {self.below}".rstrip() or self.field

    @property
    def _of_argument(self) -> bool:
        return bool(self.option) and not self.option.startswith("-")

    def sentence(self) -> str:
        """What is wrong."""
        if self._of_argument and self.complete:
            return self.message
        is_shown = self.below or (not self.option and self.value in self.message)
        value = f" {self.value}" if self.value and not is_shown else ""
        return f"{self._label}{value}: {self.message}"

    def advice(self, *, alone: bool) -> str:
        """What to do about it; among several, also what is wrong."""
        if alone:
            # An error of the whole request has no label.
            return (
                self.fix if self._of_argument or not self._label else f"{self._label}: {self.fix}"
            )
        # `there is no team "visoin"` has the value already.
        given = self.value and f'"{self.value}"' not in self.message
        value = f" {self.value!r}" if given else ""
        return f"{self._label}{value}: {self.message}; {self.fix}"


@dataclass(frozen=True)
class _Terms:
    """The terms of one command line for the API's names."""

    line: Line
    fields: Mapping[str, str]
    task: str

    @classmethod
    def of(cls, failure: Failure, line: Line) -> _Terms:
        # The command's own first: an option's name in the API is the first that stands for it.
        fields = dict(failure.fields)
        if not failure.file:
            for name, option in line.fields.items():
                fields.setdefault(name, option)
        return cls(line, fields, failure.task)

    def spell(self, name: str) -> str:
        """An option as it was typed."""
        return self.line.spelled.get(name, name)

    def text(self, text: str) -> str:
        """A sentence with commands, options as they were typed, and the task's name."""
        text = in_commands(text, self.task)
        for field, flag in FLAGS.items():
            if flag in self.line.options:
                text = text.replace(field, flag)
        for name, option in self._spelt():
            text = re.sub(rf"(?<![\w./-]){re.escape(name)}(?![\w-])", option, text)
        if self.task and text.startswith(_THE_TASK):
            text = self.task + text[len(_THE_TASK) - 1 :]
        return text

    def _spelt(self) -> Iterator[tuple[str, str]]:
        """Names to replace in sentences: fields that cannot be words, and options' other names."""
        fields = {**self.fields, **{name: name for name in self.line.spelled}}
        for name in sorted(fields, key=len, reverse=True):
            option = fields[name]
            if option.startswith("-") and ("_" in name or name in ("force", option)):
                yield name, self.spell(option)

    def error(self, given: Mapping[str, Any]) -> _Error:
        """One of the server's errors."""
        name, value = str(given.get("field") or ""), str(given.get("value") or "")
        message, fix = str(given.get("message") or ""), str(given.get("fix") or "")
        option, rest = self._option(name)
        is_about_task = bool(self.task) and message.startswith(_THE_TASK)
        if is_about_task:
            option, rest = self.fields.get("task_id", option), ""
        if option and name.endswith("_seconds"):
            message, fix = (_SECONDS.sub(_span, each) for each in (message, fix))
        below = rest[1:] if rest.startswith(".") else ""
        if option in self.line.values and not rest.startswith("["):
            value, below = self.line.values[option], ""
        return _Error(
            field=name,
            option=self.spell(option),
            below=below,
            value="" if value == _HIDDEN or option in self.line.flags else value,
            message=self.text(message),
            fix=self.text(fix),
            complete=is_about_task or message.startswith("there is "),
        )

    def _option(self, name: str) -> tuple[str, str]:
        """The option of a field, and what of the field's name lies below it."""
        for known in sorted(self.fields, key=len, reverse=True):
            if name == known or name.startswith((f"{known}.", f"{known}[")):
                return self.fields[known], name[len(known) :]
        return "", ""

    def own(self, found: Failure, where: str) -> _Error:
        """The error of a failure that the command line itself has raised."""
        name = next((name for name, option in self.fields.items() if option == where), "")
        if not name and not where.startswith("-"):
            return _Error("", "", "", "", found.what, found.fix)
        return _Error(name, found.where, "", self.line.values.get(where, ""), found.what, found.fix)


# How messages name the task of the request.
_THE_TASK, _THIS = "the task ", "ID"


def in_commands(text: str, task: str = "") -> str:
    """A sentence with commands in place of routes. ``task``: the one that it is about."""
    for route, command in _COMMANDS:

        def shown(found: re.Match[str], command: str = command) -> str:
            words = found.groupdict()
            before = words.pop("before")
            if task and words.get("id") == _THIS:
                words["id"] = task
            line = command.format_map(words)
            return f"{before}{line}" if before else f"`{line}`"

        text = route.sub(shown, text)
    return text


def _span(found: re.Match[str]) -> str:
    """The seconds as a duration that the command line takes: exactly these, or of an upper limit
    somewhat less."""
    seconds, before, after = (
        float(found[1]),
        found.string[: found.start()],
        found.string[found.end() :],
    )
    least = _FEW if before.endswith("at most ") or after.startswith(" or less") else 1
    for unit, size in _UNITS:
        if seconds % size == 0 or (least > 1 and seconds >= least * size):
            return f"{int(seconds // size)}{unit}"
    return f"{found[1]}s"


def _pattern(route: str) -> re.Pattern[str]:
    """Finds a route in a sentence, and what stands for its words in braces."""
    form = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^\\s/`;,]+)", re.escape(route))
    return re.compile(rf"(?P<before>: )?\b{form}(?![\w/:{{-])")


_COMMANDS = [(_pattern(route), COMMANDS[route]) for route in sorted(COMMANDS, key=len)[::-1]]
