"""The console script ``shiftwork`` and ``python -m shiftwork``: the command line, or the one line
that says how to install it. The training API alone needs nothing of it."""

import sys

_LIBRARIES = ("typer", "click", "rich")


def main() -> None:
    """Run the command line."""
    try:
        from shiftwork.cli import main as program  # noqa: PLC0415 - its libraries are an extra
    except ModuleNotFoundError as missing:
        if str(missing.name).partition(".")[0] not in _LIBRARIES:
            raise
        sys.exit(
            f"shiftwork: the command line needs {missing.name}, which the extra `cli` brings: "
            f'{sys.executable} -m pip install "shiftwork[cli]" '
            "(or the path of the wheel, with [cli] behind it)"
        )
    program.main()


if __name__ == "__main__":
    main()
