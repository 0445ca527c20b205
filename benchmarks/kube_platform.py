"""A platform as ``shiftwork up`` keeps it, with the launcher on a Kubernetes cluster. Started by
``kube_harness.py``.

    python -m benchmarks.kube_platform --data DIR [--host ADDRESS] [--apart launcher]

Everything is as in ``up``; which cluster is in the environment (``SHIFTWORK_LAUNCHER_…``). Services
that are named with ``--apart`` are processes of their own, whose memory and time are separate.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path

from benchmarks.fake_platform import Apart
from benchmarks.fake_service import PROFILE
from benchmarks.sampler import sampling
from services.allinone.data_folder import DataFolder, Options
from services.allinone.platform import Platform
from services.allinone.platform_process import keep_here


def main() -> int:
    """Run it until a signal ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1", help="where the gateway listens")
    parser.add_argument("--apart", action="append", default=[], metavar="SERVICE")
    asked = parser.parse_args()

    def make(data_folder: DataFolder, options: Options, pid: int) -> Platform:
        made = Apart(data_folder, options, pid)
        made.homes = {name: [name] for name in asked.apart}
        return made

    data_folder, options = (
        DataFolder(asked.data),
        Options(host=asked.host, port=0, tasks_as_root=True),
    )
    run = partial(keep_here, data_folder, options, make=make)
    into = os.environ.get(PROFILE)
    with sampling(into and f"{into}.up"):
        return run()


if __name__ == "__main__":
    sys.exit(main())
