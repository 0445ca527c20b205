"""The command ``shiftwork``: its commands by noun, and how the process ends.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 the server cannot be reached, 130
interrupted; ``wait`` and ``submit -f`` end with the task's own code, ``exec`` with the command's,
or with 255 where there is no session.
"""

import sys
from typing import Any, List, Optional

import typer

from shiftwork.cli import (
    abnormal,
    audit,
    complete,
    context_commands,
    dead_letters,
    debug,
    events,
    login,
    logs,
    metrics,
    misunderstood,
    nodes,
    notify,
    people,
    policy,
    queue,
    quota,
    render,
    session,
    shell,
    streams,
    submit,
    tasks,
    terminal,
    top,
)
from shiftwork.cli import (
    usage as usage_command,
)
from shiftwork.cli.failures import INTERRUPTED, REFUSED, USAGE, Failure, usage

app = session.App(
    name="shiftwork",
    cls=session.Root,
    no_args_is_help=True,
    help="Time-sharing for deep-learning training.",
    epilog="Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 cannot reach the server,"
    " 130 interrupted; wait and submit -f end with the task's own code,"
    " exec with the command's (255: no session).",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

NOUNS = (
    *(
        submit,
        tasks,
        queue,
        top,
        metrics,
        abnormal,
        debug,
        terminal,
        logs,
        events,
        nodes,
        quota,
        notify,
        policy,
        people,
        audit,
    ),
    *(usage_command, dead_letters, login, context_commands, shell),
)
for noun in NOUNS:
    noun.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        shell.version()
        raise typer.Exit


@app.callback()
def options(
    url: str = typer.Option("", "--url", help="The server's address. (SHIFTWORK_URL)"),
    token: str = typer.Option("", "--token", help="Your token. (SHIFTWORK_TOKEN)"),
    context: str = typer.Option(
        "", "--context", help="A context by name.", autocompletion=complete.context_names
    ),
    as_json: bool = typer.Option(False, "--json", help="Answer in JSON."),
    wide: bool = typer.Option(False, "--wide", help="Tables with everything, however wide."),
    output: Optional[List[str]] = typer.Option(
        None,
        "-o",
        "--output",
        metavar="FORM",
        help="wide and json: the same; yaml; name: only ids, one a line.",
        autocompletion=complete.outputs,
    ),
    no_pager: bool = typer.Option(
        False, "--no-pager", help="Print long results as they are. (SHIFTWORK_PAGER, PAGER)"
    ),
    quiet: bool = typer.Option(False, "-q", "--quiet", help="Results only."),
    verbose: bool = typer.Option(False, "-v", "--verbose", help="Print more."),
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Take the options of every command."""
    del version
    shorthands = [*(["--json"] if as_json else []), *(["--wide"] if wide else [])]
    session.begin(
        session.Session(
            url=url,
            token=token,
            context=context,
            form=session.form_of([*shorthands, *(output or [])]),
            quiet=quiet,
            verbose=verbose,
            paged=not no_pager,
        )
    )


def run(arguments: Optional[List[str]] = None) -> int:
    """Run one command line; its exit code."""
    try:
        ended: Any = app(arguments, standalone_mode=False, prog_name="shiftwork")
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Failure as failure:
        render.failure(failure)
        return failure.code
    except OSError as error:
        return _ended_by(error)
    except Exception as error:
        message: Any = getattr(error, "format_message", None)
        if message is None:
            raise
        if type(error).__name__ == "NoArgsIsHelpError" or not message():
            # No command was given. Older versions of Click have printed the help already.
            if render.wants_json():
                path = getattr(getattr(error, "ctx", None), "command_path", "shiftwork")
                fix = f"`{path} --help` shows what is understood"
                render.failure(usage("the command is missing", fix=fix))
            elif message():
                render.help_text(message())
            return USAGE
        render.failure(misunderstood.failure_of(error, session.words()))
        return USAGE
    return ended if isinstance(ended, int) else 0


def _ended_by(error: OSError) -> int:
    """The exit code of a command that its surroundings have ended; raises every other error."""
    if isinstance(error, BrokenPipeError):
        # The reader has gone: leave quietly.
        return REFUSED
    found = streams.failure_of(error)
    if found is None:
        raise error
    render.failure(found)
    return found.code


def main() -> None:
    """The console script."""
    streams.open_all()
    code = run()
    streams.close_all()
    sys.exit(code)
