"""``make chaos``: kill and freeze every part of a real platform, while people pause, stop,
re-prioritise and drain; then check what happened. Where a small disk can be mounted (root), the
platform lies on one, which is full now and then; ``--no-full-disk`` leaves that out.

    python -m tests.chaos --seconds 120 [--seed 7]

The exit status is 0 if every invariant holds. A seed gives the same tasks and the same faults at
the same times; their effect depends on the machine.
"""

from __future__ import annotations

import argparse
import secrets
import sys

import uvloop

from tests.chaos.chaos import Plan, play, print_line
from tests.kit.small_disk import can_mount


def main() -> int:
    parser = argparse.ArgumentParser(description="kill -9 of every part, with real processes")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long parts die")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument(
        "--full-disk",
        action=argparse.BooleanOptionalAction,
        default=can_mount(),
        help="a small disk, full now and then",
    )
    given = parser.parse_args()
    seed = secrets.randbelow(1 << 20) if given.seed is None else given.seed
    disk = "--full-disk" if given.full_disk else "--no-full-disk"
    print_line(f"seed {seed} {disk}")
    plan = Plan(seed, given.seconds, nodes=given.nodes, full_disk=given.full_disk)
    report = uvloop.run(play(plan, print_line))
    print_line(", ".join(f"{count} {name}" for name, count in report.counts.items()))
    if not report.complaints:
        print_line(f"seed {seed}: every invariant holds")
        return 0
    for complaint in report.complaints:
        print_line(f"  {complaint}")
    print_line(f"{len(report.complaints)} complaints. Again with the same tasks and faults:")
    again = f"--seconds {given.seconds:g} --nodes {given.nodes} --seed {seed} {disk}"
    print_line(f"  python -m tests.chaos {again}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
