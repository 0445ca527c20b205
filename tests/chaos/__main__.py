"""``make chaos``: kill and freeze every part of a real platform, while people pause, stop,
re-prioritise and drain; then judge what happened. ``--full-disk`` (root) fills its disk, too.

    python -m tests.chaos --seconds 120 [--seed 7]

Exit status 0: every judge is content. A seed gives the same tasks and the same faults at the same
moments; what they meet depends on the machine.
"""

from __future__ import annotations

import argparse
import secrets
import sys

import uvloop

from tests.chaos.chaos import Plan, play, say


def main() -> int:
    parser = argparse.ArgumentParser(description="kill -9 of every part, with real processes")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long parts die")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument(
        "--full-disk", action="store_true", help="a small disk, full now and then (root)"
    )
    given = parser.parse_args()
    seed = secrets.randbelow(1 << 20) if given.seed is None else given.seed
    say(f"seed {seed}")
    plan = Plan(seed, given.seconds, nodes=given.nodes, full_disk=given.full_disk)
    report = uvloop.run(play(plan, say))
    say(", ".join(f"{count} {name}" for name, count in report.counts.items()))
    if not report.complaints:
        say(f"seed {seed}: every judge is content")
        return 0
    for complaint in report.complaints:
        say(f"  {complaint}")
    say(f"{len(report.complaints)} complaints. Again with the same tasks and faults:")
    say(f"  python -m tests.chaos --seconds {given.seconds:g} --nodes {given.nodes} --seed {seed}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
