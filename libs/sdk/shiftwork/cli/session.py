"""The options that every command takes, and the guard around every command.

``--url --token --context --json --wide -o -q -v --no-pager`` may stand before or after the command:
``Root`` moves them to the front before anything is parsed, and turns a ``Failure`` into a message
and an exit code. Commands of plug-ins get both by registering on an ``App``.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import typer
from typer.core import TyperCommand, TyperGroup

from shiftwork.cli import contexts, guide, installed, pager, render, typed, watch
from shiftwork.cli.client import CALL_SECONDS, Api
from shiftwork.cli.failures import INTERRUPTED, Failure, usage

_FLAGS = frozenset(
    {"--json", "--wide", "-q", "--quiet", "-v", "--verbose", "--version", "--no-pager"}
)
_VALUED = ("--url", "--token", "--context", "-o", "--output")
OUTPUTS = ("wide", *render.DOCUMENTS)
# What ``-o`` is short for, and ``-ojson`` for ``-o json``.
SHORTHANDS = {"--json": "json", "--wide": "wide"}
_JOINED = {f"-o{form}": form for form in OUTPUTS}
# Characters of a command's line in the main help.
HELP_MAX = 200


@dataclass(frozen=True)
class Session:
    """The global options, wherever they stood in the command line."""

    url: str = ""
    token: str = ""
    context: str = ""
    form: str = ""
    """A word of ``OUTPUTS``; empty: what the command prints by itself."""
    quiet: bool = False
    verbose: bool = False
    paged: bool = True
    """Long results may go through a pager."""
    separated: bool = False
    """The command line holds ``--``: what follows belongs to the task."""
    call_seconds: float = CALL_SECONDS
    """How long a request may take."""

    @property
    def json(self) -> bool:
        """True if the result is a document, in one of its forms."""
        return self.form in render.DOCUMENTS

    def target(self) -> contexts.Target:
        """The server and the token. Raises Failure if none is known."""
        return contexts.target(
            url=self.url,
            token=self.token,
            context=self.context,
            environ=os.environ,
        )

    def api(self) -> Api:
        """The server's API; closed when the command ends."""
        found = self.target()
        api = Api(found.url, found.token, self._address_given_by(), found.data)
        api.call_seconds = self.call_seconds
        if self.call_seconds < CALL_SECONDS:
            # Who waits briefly asks again by itself.
            api.unreached_tries_max = 1
        _open.append(api)
        return api

    def _address_given_by(self) -> str:
        if self.url:
            return "--url"
        is_set = not self.context and os.environ.get("SHIFTWORK_URL")
        return "SHIFTWORK_URL" if is_set else str(contexts.default_path())


_current = Session()
_open: List[Api] = []
# What was typed before ``--``, and the command of it that runs.
_words: List[str] = []
_line = typed.Line({}, {}, {})


def current() -> Session:
    """The session of the command that runs."""
    return _current


def words() -> List[str]:
    """What was typed before ``--``."""
    return _words


def report(failure: Failure, of: str = "") -> None:
    """Print a failure in the terms of the command line that was typed. ``of``: one of several tasks
    of the line, which the message names."""
    found = typed.translated(failure, _line)
    if of and of not in found.what:
        found.what = f"{of}: {found.what}"
    render.failure(found)


def begin(session: Session) -> None:
    """Set it; called by the application's callback."""
    global _current  # noqa: PLW0603 - one command line per process
    _current = replace(session, separated=_current.separated)
    render.configure(form=session.form, quiet=session.quiet, verbose=session.verbose)


def close_connections() -> None:
    """Close every ``Api`` that was handed out."""
    while _open:
        _open.pop().close()


def form_of(asked: Sequence[str]) -> str:
    """The form that options ask for, each given as it is typed. ``wide`` goes with each other form.
    Raises Failure for an unknown form, and for several."""
    forms: Dict[str, str] = {}
    for option in asked:
        form = SHORTHANDS.get(option, option)
        if form not in OUTPUTS:
            fix = f"{guide.meant(form, OUTPUTS)} choose of {', '.join(OUTPUTS)}".strip()
            raise usage(f"--output {form}: there is no such form", where="--output", fix=fix)
        forms.setdefault(form, option if option in SHORTHANDS else f"--output {form}")
    if len(forms) > 1:
        # It is about tables, and so says nothing of documents.
        forms.pop("wide", None)
    if len(forms) > 1:
        both = " and ".join(forms.values())
        raise usage(f"{both}: a result has one form", where="--output", fix="leave one out")
    return next(iter(forms), "")


def refuse_csv_as_document(as_csv: bool) -> None:
    """Raises Failure if CSV and a form of ``-o`` are asked for together, which it names as it was
    typed."""
    if not (as_csv and _current.json):
        return
    short = next((each for each, form in SHORTHANDS.items() if form == _current.form), "")
    option = short if short in _words else f"-o {_current.form}"
    what = f"--csv and {option} contradict each other: a result has one form"
    raise usage(what, where="--csv", fix=f"leave out --csv or {option}")


def hoist(arguments: Sequence[str]) -> Tuple[List[str], bool]:
    """The same command line with the global options first, and whether it holds ``--``.

    What follows ``--`` belongs to a task's command and stays as it is.
    """
    front: List[str] = []
    rest: List[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "--":
            return front + rest + [word] + words, True
        if word in _JOINED:
            front += ["-o", _JOINED[word]]
        elif word in _FLAGS or word.startswith(tuple(f"{name}=" for name in _VALUED)):
            front.append(word)
        elif word in _VALUED and words:
            front += [word, words.pop(0)]
        else:
            rest.append(word)
    return front + rest, False


def _refuse_other_encodings(words: Sequence[str]) -> None:
    """Raises Failure for an argument that is not UTF-8: nothing that is sent could carry it."""
    for place, word in enumerate(words):
        # Half a surrogate pair stands for each byte that is no UTF-8.
        if not any("\ud800" <= sign <= "\udfff" for sign in word):
            continue
        shown = os.fsencode(word).decode("utf-8", "backslashreplace")
        before = words[place - 1] if place else ""
        where = before if before.startswith("-") and before != "--" else shown
        fix = "write it in UTF-8; a file gets another name with mv"
        raise usage(f"{shown}: this argument is not UTF-8", where=where, fix=fix)


def _with_help(words: Sequence[str]) -> List[str]:
    """``help COMMAND`` as ``COMMAND --help``."""
    place = 0
    while place < len(words) and words[place].startswith("-"):
        place += 2 if words[place] in _VALUED else 1
    rest = list(words[place + 1 :])
    if list(words[place : place + 1]) != ["help"] or any(word.startswith("-") for word in rest):
        return list(words)
    return [*words[:place], *rest, "--help"]


class App(typer.Typer):
    """A Typer application whose commands are ``Command``s, and whose help is plain text."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - Typer's own options
        # Typer's own drawing of help imports most of rich and pygments: half of a start.
        super().__init__(rich_markup_mode=None, **options)

    def command(self, name: Optional[str] = None, **options: Any) -> Callable[..., Any]:  # noqa: ANN401 - Typer's own options
        """Register a command, as Typer does."""
        options.setdefault("epilog", EPILOG)
        options.setdefault("cls", Command)
        register = super().command(name, **options)
        if options["cls"] is not Watched:
            return register

        def watchable(function: Callable[..., Any]) -> Callable[..., Any]:
            return register(watch.watchable(function))

        return watchable


EPILOG = (
    "Every command also takes --url, --token, --context, -o FORM (wide, json, yaml, name), --json,"
    " --wide, --no-pager, -q and -v, before or after it."
)


def _refuse_repeated(order: Sequence[Any]) -> None:
    """Raise a usage error for an option of one value that is given twice: the command would use the
    last one alone. ``order``: the parameters, once for each time that they are given."""
    for option, count in Counter(order).items():
        takes_one = option.param_type_name == "option" and not (option.multiple or option.is_flag)
        if takes_one and not option.count and count > 1:
            name = typed.name_of(option)
            raise usage(f"{name} is given {count} times", where=name, fix="give it once")


class Command(TyperCommand):
    """A command whose options are known to the code that reports its failures."""

    def parse_args(self, ctx: Any, args: List[str]) -> List[str]:  # noqa: ANN401 - Typer's
        """Parse, and add to each error which command it is about."""
        # The parser empties its list.
        given = list(args)
        try:
            parsed = super().parse_args(ctx, args)
            if not ctx.resilient_parsing:
                _refuse_repeated(self.make_parser(ctx).parse_args(given)[2])
        except Exception as error:
            _set_context(error, ctx)
            raise
        return parsed

    def get_params(self, ctx: Any) -> List[Any]:  # noqa: ANN401 - Typer's
        """Its parameters; for completion also the options of every command, which may follow it."""
        own = super().get_params(ctx)
        if not ctx.resilient_parsing or ctx.parent is None:
            return own
        known = {opt for param in own for opt in param.opts}
        everywhere = ctx.find_root().command.params
        return own + [each for each in everywhere if not known & {*each.opts}]

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - Typer's
        """Run it."""
        _set_line(ctx)
        if _current.form == "name":
            _name_by(ctx)
        return super().invoke(ctx)


def _name_by(ctx: Any) -> None:  # noqa: ANN401 - Typer's
    """Set the field that ``-o name`` prints. Raises Failure where there is none."""
    path = " ".join(ctx.command_path.split()[1:])
    field = guide.NAMES.get(path)
    if field is None:
        what = f"--output name: `shiftwork {path}` prints nothing that has a name"
        raise usage(what, where="--output", fix="choose of wide, json, yaml")
    if ctx.params.get("follow_it"):
        fix = "leave one of them out, or choose of json, yaml"
        raise usage("--output name does not go with --follow", where="--output", fix=fix)
    now = _current
    render.configure(form=now.form, quiet=now.quiet, verbose=now.verbose, name=field)


class Paged(Command):
    """A command whose result, where it is longer than the terminal, goes through a pager."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - Typer's
        """Run it, and page what it prints unless it follows something."""
        with pager.paging(wanted=_current.paged and not ctx.params.get("follow_it")):
            return super().invoke(ctx)


class Watched(Paged):
    """A paged command that can also be repeated: it has ``--watch`` and ``--interval``."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - Typer's
        """Run it once, or again and again."""
        seconds = watch.interval(ctx.params)
        if seconds is None:
            return super().invoke(ctx)
        if _current.form == "name":
            fix = "leave one of them out, or choose of wide, json, yaml"
            raise usage("--output name does not go with --watch", where="--output", fix=fix)
        begin(replace(_current, call_seconds=watch.CALL_SECONDS, paged=False))

        def draw() -> None:
            try:
                # The pager's own block is left out: a picture is cut at the screen's end.
                Command.invoke(self, ctx)
            finally:
                close_connections()

        return watch.repeat(draw, seconds, _title())


def _title() -> str:
    """The command line without what belongs to no picture, such as a token."""
    words = list(_words)
    shown = ["shiftwork"]
    while words:
        word = words.pop(0)
        if word in _VALUED:
            del words[:1]
        elif not word.startswith(("--token=", "--url=", "--watch", "-w")):
            shown.append(word)
    return " ".join(shown)


def _set_context(error: Any, ctx: Any) -> None:  # noqa: ANN401 - Typer's
    """Add the command to a parser error: the parser omits it when an option has no value."""
    if getattr(error, "ctx", ctx) is None:
        error.ctx = ctx


def _set_line(ctx: Any) -> None:  # noqa: ANN401 - Typer's
    global _line  # noqa: PLW0603 - one command line per process
    _line = typed.line_of(ctx, _words)


class Root(TyperGroup):
    """The top level: global options anywhere, plug-ins' commands loaded when asked for, failures as
    messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - Typer's
        """Run the command."""
        _set_line(ctx)
        try:
            return super().invoke(ctx)
        except Failure as failure:
            report(failure)
            raise typer.Exit(failure.code) from None
        except KeyboardInterrupt:
            render.note("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        finally:
            close_connections()

    def parse_args(self, ctx: Any, args: List[str]) -> List[str]:  # noqa: ANN401 - Typer's
        """Parse with the global options in front."""
        global _current, _words  # noqa: PLW0603 - one command line per process
        hoisted, separated = hoist(_with_help(args))
        # A copy: the parser empties its list.
        _words = hoisted[: hoisted.index("--") if separated else len(hoisted)]
        before = zip(_words, _words[1:])
        is_json = "--json" in _words or ("-o", "json") in before or "--output=json" in _words
        _current = Session(separated=separated, form="json" if is_json else "")
        render.configure(form=_current.form, quiet=False, verbose=False)
        _refuse_other_encodings(args)
        try:
            return super().parse_args(ctx, hoisted)
        except Exception as error:
            _set_context(error, ctx)
            raise

    def list_commands(self, ctx: Any) -> List[str]:  # noqa: ANN401 - Typer's
        """Our own commands and the plug-ins', the first steps first."""
        return guide.ordered([*{*super().list_commands(ctx), *plugins()}])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - Typer's
        """One of our own, else a plug-in's: the platform is imported only when it is needed."""
        found = super().get_command(ctx, cmd_name) or plugins().get(cmd_name)
        return found and guide.dress(found, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - Typer's
        """Write the commands into the help, group by group, each with its whole first sentence."""
        known = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = [name for name, command in known.items() if not command.hidden]
        for panel, names in guide.panels(shown).items():
            with formatter.section(panel):
                rows = [(name, known[name].get_short_help_str(limit=HELP_MAX)) for name in names]
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: List[str]) -> Any:  # noqa: ANN401 - Typer's
        """A command by its name, or by its name in other tools."""
        known = self.get_command(ctx, args[0]) is not None
        if not known and args[0] in installed.PLATFORM and not installed.has_platform():
            raise usage(
                f"`shiftwork {args[0]}` belongs to the platform, which is not installed here",
                where=sys.prefix,
                fix="activate the platform's environment (`source .venv/bin/activate` in its"
                f" clone), or call it by its path: .venv/bin/shiftwork {args[0]}",
            )
        return super().resolve_command(ctx, args if known else guide.expanded(args))


@functools.lru_cache(maxsize=1)
def plugins() -> Dict[str, Any]:
    """The commands that installed packages add: ``{name: command}``."""
    app = App(name="plugins")
    app.callback()(_nothing)
    for entry in installed.entry_points():
        try:
            entry.load()(app)
        except Exception as error:  # noqa: BLE001, PERF203 - one broken plug-in must not end all
            render.warning(f"the commands of {entry.value!r} cannot be loaded: {error}")
    group: Any = typer.main.get_group(app)
    return dict(group.commands)


def _nothing() -> None:
    """Hold the plug-ins' commands."""
