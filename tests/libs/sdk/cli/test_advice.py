"""Every command that a message gives can be typed: it parses with the command line's own parser.

The messages are the texts in the sources of the services and libraries. What a format inserts is a
word; a route of the API is the command that the command line shows in its place.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from shiftwork.cli import guide, main, typed

from libs.contracts import wording
from services.gateway.api import login, nodes, people, policies, quotas, tasks, tokens
from services.gateway.api.deps import action_of
from services.gateway.permissions import Action, whom_to_ask

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[4]
FOLDERS = ("services", "libs")
# What is in the place of a value that a message inserts.
INSERTED = "word"
# Names that are inserted, and what is no command.
NOT_COMMANDS = ("shiftwork word", "shiftwork saved word")
ROUTE = re.compile(r"\b(?:GET|POST|PUT|PATCH|DELETE) /v1/\S*")
# What follows a route and says which change is meant: `with archived: true`.
CHANGE = re.compile(r"shiftwork [^`]*`? with \w+: ")
IN_TICKS = re.compile(r"`(shiftwork [^`]+)`")
AFTER_A_COLON = re.compile(r"(?:^|: )(shiftwork [^`;(),]+)")
# These refuse to run without an option.
NEED_OPTIONS = ("user set", "team set", "quota set")
# Built of parts; the tests of the modules have their values.
BUILT = ("{unit}", "{options}", "{kind}")
# The kinds of things that ``wording.no_such`` gets; their lists stand for GET /v1/{kind}s.
KINDS = ("user", "team", "group", "node", "task", "token")


@dataclass(frozen=True)
class Text:
    place: str
    text: str


def sources() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "build" not in path.relative_to(ROOT).parts:
                yield path


@cache
def texts() -> tuple[Text, ...]:
    """Each text of the sources that names a command or a route, without docstrings."""
    return tuple(each for path in sources() for each in texts_of(path))


def texts_of(path: Path) -> Iterator[Text]:
    source = path.read_text()
    if "shiftwork" not in source and "/v1/" not in source:
        return
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            skipped.add(id(body[0].value))
        if isinstance(node, ast.JoinedStr):
            skipped.update(id(each) for each in ast.walk(node) if each is not node)
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        text = text_of(node)
        if text and not any(each in text for each in BUILT):
            yield Text(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", text)


def text_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return ""
    parts = [
        each.value if isinstance(each, ast.Constant) else f"{{{shown(each)}}}"
        for each in node.values
    ]
    return "".join(str(part) for part in parts)


def shown(part: ast.expr) -> str:
    inner = part.value if isinstance(part, ast.FormattedValue) else part
    return inner.id if isinstance(inner, ast.Name) and f"{{{inner.id}}}" in BUILT else INSERTED


def plain(text: str) -> str:
    return re.sub(r"\{\w*\}", INSERTED, text)


def is_message(text: str) -> bool:
    """Whether people read it; routes of clients and tables stand alone."""
    return " " in ROUTE.sub("", text).strip()


def commands() -> Iterator[tuple[str, str]]:
    """Each command, with the place where it is written."""
    for each in texts():
        text = plain(typed.in_commands(plain(each.text)))
        for pattern in (IN_TICKS, AFTER_A_COLON):
            lines = [found[1].strip() for found in pattern.finditer(text)]
            yield from ((each.place, line) for line in lines if line not in NOT_COMMANDS)
    for route, command in typed.COMMANDS.items():
        yield f"COMMANDS {route}", plain(command)
    for name, lines in guide.EXAMPLES.items():
        for line in lines:
            yield f"EXAMPLES {name}", f"shiftwork {line}"


@cache
def program() -> Any:
    return typer.main.get_command(main.app)


def parse(command: str) -> str:
    """Parse a command. Returns what the parser has to say against it."""
    if "OPTIONS]" in command:
        return "nobody can type [OPTIONS]"
    line = re.split(r"\s[>|]\s", command)[0].rstrip(".")
    # A form as the help has it: what may be left out is left out, or given.
    words = re.sub(r"\[options\]|\.\.\.", "", line.replace("'", "")).split()[1:]
    words = [word.strip("[]") for word in words]
    try:
        context = program().make_context("shiftwork", list(words))
        while hasattr(context.command, "commands"):
            rest = [*getattr(context, "_protected_args", ()), *context.args]
            name, below, rest = context.command.resolve_command(context, rest)
            context = below.make_context(name, rest, parent=context)
    except typer.Exit:
        # --help was printed.
        return ""
    except Exception as error:  # noqa: BLE001 - Typer's own kinds, which differ by its version
        said = str(getattr(error, "format_message", error.__str__)())
        # What is inserted is no number and no file.
        return "" if "Invalid value" in said else (said or "no command").splitlines()[0]
    path = " ".join(context.command_path.split()[1:])
    if path in NEED_OPTIONS and " --" not in command:
        return "it needs an option"
    return ""


def test_every_command_in_a_message_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    found = {(place, command): parse(command) for place, command in commands()}
    capsys.readouterr()
    assert len(found) > 150
    assert [f"{place}: {command}: {what}" for (place, command), what in found.items() if what] == []


def test_every_route_in_a_message_has_a_command() -> None:
    messages = [each for each in texts() if is_message(each.text)]
    left = {
        each.place: shown
        for each in messages
        if ROUTE.search(shown := plain(typed.in_commands(plain(each.text)))) or CHANGE.search(shown)
    }
    assert left == {}


@pytest.mark.parametrize("kind", KINDS)
def test_what_lists_the_things_of_a_kind_has_a_command(kind: str) -> None:
    fix = typed.in_commands(wording.no_such("name", kind, "x").fix)
    assert IN_TICKS.search(fix), fix


def test_every_command_in_a_message_is_marked_as_one() -> None:
    """In backticks, or behind a colon: else nobody sees where it ends, nor does this test."""
    names = "|".join(program().list_commands(typer.Context(program())))
    bare = re.compile(rf"(?<![`/.>\w])shiftwork ({names})\b")
    left = [
        f"{each.place}: {each.text}"
        for each in texts()
        if " " in each.text.strip()
        and bare.search(AFTER_A_COLON.sub("", IN_TICKS.sub("", plain(each.text))))
    ]
    assert left == []


WHOM = re.compile(r"\ban (?:administrator|operator)\b(?! for the role)")
CHANGES = re.compile(r"\b(POST|PUT|PATCH|DELETE) (/v1/[^\s;,)`]*)")


def changes_in(text: str) -> Iterator[tuple[str, str]]:
    """The routes that a message asks somebody for, by themselves or as commands."""
    yield from CHANGES.findall(text)
    for found in (*IN_TICKS.finditer(text), *AFTER_A_COLON.finditer(text)):
        words = found[1].split()[:3]
        for route, command in typed.COMMANDS.items():
            if command.split()[:3] == words:
                yield from CHANGES.findall(route)


def test_who_is_to_be_asked_is_who_may_do_it() -> None:
    """The words of messages follow from the table of permissions."""
    found: dict[str, str] = {}
    checked = 0
    for each in texts():
        for method, path in changes_in(plain(each.text)) if WHOM.search(each.text) else ():
            whom = whom_to_ask(action_at(method, path))
            checked += 1
            if whom not in each.text:
                found[each.place] = f"{method} {path} is for {whom}: {each.text}"
    assert found == {}
    assert checked > 3


def action_at(method: str, path: str) -> Action:
    """What a route does; words of its path that are inserted stand for anything."""
    for router in routers():
        for route in router.routes:
            form = re.sub(r"\{\w+\}", "[^/]+", route.path)
            if method in route.methods and re.fullmatch(f"(?:/v1)?{form}", path):
                return action_of(route.endpoint)[0]
    raise AssertionError(f"{method} {path} is no route")


def routers() -> tuple[Any, ...]:
    return tuple(
        module.router for module in (people, quotas, tokens, tasks, nodes, policies, login)
    )
