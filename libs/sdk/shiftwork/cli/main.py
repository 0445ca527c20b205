"""The command ``shiftwork``: its commands by noun, and how the process ends.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 the server cannot be reached, 130
interrupted; ``wait`` and ``submit -f`` end with the task's own code.
"""

import os
import sys
from typing import Any, List, Optional

import typer

from shiftwork.cli import (
    dead_letters,
    events,
    logs,
    nodes,
    people,
    policy,
    quota,
    render,
    session,
    shell,
    submit,
    tasks,
)
from shiftwork.cli.failures import INTERRUPTED, USAGE, Failure

app = session.App(
    name="shiftwork",
    cls=session.Root,
    no_args_is_help=True,
    help="Time-sharing for deep-learning training.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

for noun in (submit, tasks, logs, events, nodes, quota, policy, people, dead_letters, shell):
    noun.register(app)


@app.callback()
def options(
    url: str = typer.Option("", "--url", help="The server's address. (SHIFTWORK_URL)"),
    token: str = typer.Option("", "--token", help="Your token. (SHIFTWORK_TOKEN)"),
    context: str = typer.Option("", "--context", help="A context by name."),
    as_json: bool = typer.Option(False, "--json", help="Answer in JSON."),
    wide: bool = typer.Option(False, "--wide", help="Tables with everything, however wide."),
    output: str = typer.Option("", "-o", "--output", help="wide or json: the same."),
    quiet: bool = typer.Option(False, "-q", "--quiet", help="Results only."),
    verbose: bool = typer.Option(False, "-v", "--verbose", help="Say more."),
) -> None:
    """Time-sharing for deep-learning training.

    Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 cannot reach the server,
    130 interrupted; wait and submit -f end with the task's own code.
    """
    if output and output not in session.OUTPUTS:
        raise typer.BadParameter(f"{output!r} is not one of: {', '.join(session.OUTPUTS)}")
    session.begin(
        session.Session(
            url=url,
            token=token,
            context=context,
            json=as_json or output == "json",
            quiet=quiet,
            verbose=verbose,
            wide=wide or output == "wide",
        )
    )


def run(arguments: Optional[List[str]] = None) -> int:
    """Run one command line; its exit code."""
    try:
        ended: Any = app(arguments, standalone_mode=False, prog_name="shiftwork")
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone: leave quietly, and let nothing be flushed into the void.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        told = getattr(error, "format_message", None)
        if told is None:
            raise
        render.failure(
            Failure(
                str(told()),
                fix="`shiftwork --help` and `shiftwork COMMAND --help` show what is understood",
                code=USAGE,
            )
        )
        return USAGE
    return ended if isinstance(ended, int) else 0


def main() -> None:
    """The console script."""
    sys.exit(run())
