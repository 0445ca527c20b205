"""``python -m tests.soak [--tasks N] [--real N]``: many tasks, and then what has grown.

First through all services on memory adapters and virtual time, then through a platform with its
servers and processes. The exit status is 1 if anything grows with the number of tasks.
"""

from __future__ import annotations

import argparse
import asyncio

from tests.soak.memory import soak
from tests.soak.quiet import quiet
from tests.soak.real import soak_real

SAMPLES = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000, help="on memory (%(default)s)")
    parser.add_argument("--real", type=int, default=5_000, help="on servers (%(default)s)")
    arguments = parser.parse_args()
    growing: list[str] = []
    if arguments.tasks:
        with quiet():
            found, _ = soak(arguments.tasks, max(1, arguments.tasks // SAMPLES))
        growing += found
    if arguments.real:
        growing += asyncio.run(soak_real(arguments.real, max(1, arguments.real // SAMPLES)))
    for text in growing:
        print(f"GROWS  {text}")
    print("something grows" if growing else "nothing grows")
    return 1 if growing else 0


if __name__ == "__main__":
    raise SystemExit(main())
