"""The console script ``shiftwork`` and ``python -m shiftwork``: runs the command line, or prints
how to install it. The training API does not need it."""

import sys

_LIBRARIES = ("typer", "click", "rich")
_INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    try:
        from shiftwork.cli import main as program  # noqa: PLC0415 - its libraries are an extra
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except ModuleNotFoundError as missing:
        if str(missing.name).partition(".")[0] not in _LIBRARIES:
            raise
        from shiftwork.cli.environments import pip_install, sdk  # noqa: PLC0415 - only here

        sys.exit(
            f"shiftwork: the command line needs {missing.name}, which the extra `cli` brings: "
            + pip_install(sys.executable, sdk("[cli]"))
        )
    program.main()


if __name__ == "__main__":
    main()
