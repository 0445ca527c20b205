"""Runs ``pg_dump`` and ``pg_restore`` of the PostgreSQL that the platform brings.

Their password is in a private file while they run: no command line and no environment has it.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from services.allinone.backup.backup_file import CHUNK_BYTES
from services.allinone.embedded.postgres import POSTGRES_SUPERUSER, Postgres, programs_folder

END_SECONDS_MAX = 30.0
PROBLEM_BYTES_MAX = 4096
# How long ``pg_dump`` waits for a table that a migration holds.
LOCK_TIMEOUT = "30s"


class ProgramError(Exception):
    """A program failed; its last words."""


def dump(postgres: Postgres, snapshot: str) -> Iterator[bytes]:
    """Yield the platform's database as of a snapshot, in PostgreSQL's custom format. Raises
    ProgramError."""
    options = (
        *("--format=custom", "--compress=gzip:1", f"--snapshot={snapshot}"),
        f"--lock-wait-timeout={LOCK_TIMEOUT}",
    )
    with _running("pg_dump", postgres, options, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        while chunk := program.stdout.read(CHUNK_BYTES):
            yield chunk


def restore(postgres: Postgres, chunks: Iterable[bytes]) -> None:
    """Fill the platform's database, in one transaction. Its roles must exist. Raises ProgramError;
    the database is as it was then."""
    options = ("--clean", "--if-exists", "--exit-on-error", "--single-transaction")
    with _running("pg_restore", postgres, options, stdin=subprocess.PIPE) as program:
        assert program.stdin is not None
        try:
            for chunk in chunks:
                program.stdin.write(chunk)
            program.stdin.close()
        except BrokenPipeError:
            # Its status and its last words are the reason.
            with contextlib.suppress(BrokenPipeError):
                program.stdin.close()


@contextlib.contextmanager
def _running(
    name: str,
    postgres: Postgres,
    options: Sequence[str],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
) -> Generator[subprocess.Popen[bytes]]:
    """Run a program; at the end of the context wait for it, or kill it if the context failed."""
    with (
        tempfile.NamedTemporaryFile(prefix="shiftwork-") as passwords,
        tempfile.TemporaryFile() as problems,
    ):
        # Private already; the program refuses one that is not.
        passwords.write(f"*:*:*:{POSTGRES_SUPERUSER}:{postgres.admin_password}\n".encode())
        passwords.flush()
        program = subprocess.Popen(  # noqa: S603 - a program of our own wheels, no shell
            [
                str(programs_folder() / "bin" / name),
                f"--dbname={postgres.url(POSTGRES_SUPERUSER)}",
                "--no-password",
                *options,
            ],
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PGPASSFILE": passwords.name},
            cwd=Path("/"),
            stdin=stdin,
            stdout=stdout,
            stderr=problems,
            # Ctrl-C ends it through the context.
            start_new_session=True,
        )
        try:
            yield program
            status = program.wait(END_SECONDS_MAX if stdout == subprocess.PIPE else None)
        except BaseException:
            program.kill()
            program.wait()
            raise
        finally:
            for stream in (program.stdin, program.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        if status:
            raise ProgramError(f"{name} ended with status {status}: {_tail(problems)}")


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, 2)
    file.seek(max(0, size - PROBLEM_BYTES_MAX))
    return file.read().decode(errors="replace").strip()
