"""Finds the other ranks by its task's contract alone, and exchanges names with them over sockets.

Run as a task by ``test_contract_processes.py``, with the contract's name; prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

SECONDS = 20.0
Address = tuple[str, int]


def serve(own: Address, count: int, received: list[str]) -> threading.Thread:
    """Take so many names, in a thread."""
    listener = socket.create_server(own)
    listener.settimeout(SECONDS)

    def accept() -> None:
        for _ in range(count):
            connection, _ = listener.accept()
            with connection:
                received.append(connection.makefile().readline().strip())

    thread = threading.Thread(target=accept)
    thread.start()
    return thread


def say(name: str, to: Address) -> None:
    """Send the name to a rank that may not listen yet."""
    ends = time.monotonic() + SECONDS
    while True:
        try:
            with socket.create_connection(to, timeout=SECONDS) as connection:
                connection.sendall(f"{name}\n".encode())
                return
        except ConnectionRefusedError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.02)


def meet(name: str, own: Address | None, others: Iterable[Address], count: int) -> list[str]:
    """The names of the others."""
    received: list[str] = []
    thread = serve(own, count, received) if own else None
    for other in others:
        say(name, other)
    if thread:
        thread.join()
    return sorted(received)


def address(text: str, port: str = "") -> Address:
    host, _, own = text.partition(":")
    return host, int(own or port)


def one_listens(prefix: str, rank: str, world: str) -> list[str]:
    """Rank 0 takes the names of all others."""
    number, count = int(os.environ[rank]), int(os.environ[world])
    first = (os.environ[f"{prefix}_ADDR"], int(os.environ[f"{prefix}_PORT"]))
    if number == 0:
        return meet("0", first, [], count - 1)
    return meet(str(number), None, [first], 0)


def torch() -> list[str]:
    return one_listens("MASTER", "RANK", "WORLD_SIZE")


def coordinator() -> list[str]:
    os.environ["COORDINATOR_ADDR"] = os.environ["COORDINATOR_ADDRESS"]
    return one_listens("COORDINATOR", "PROCESS_ID", "NUM_PROCESSES")


def tf_config() -> list[str]:
    """Every member of the cluster takes the names of all, an evaluator's too."""
    config = json.loads(os.environ["TF_CONFIG"])
    kind, index = config["task"]["type"], config["task"]["index"]
    members = {
        f"{role}-{number}": address(text)
        for role, listed in config["cluster"].items()
        for number, text in enumerate(listed)
    }
    own = members.pop(f"{kind}-{index}", None)
    count = int(os.environ["SHIFTWORK_WORLD_SIZE"]) - 1
    return meet(f"{kind}-{index}", own, members.values(), count)


def rank() -> list[str]:
    """Every rank takes the names of all others."""
    number, port = int(os.environ["RANK"]), os.environ["WORKER_PORT"]
    everyone = [(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))]
    everyone += [address(text, port) for text in os.environ["WORKER_ADDRS"].split(",")]
    own = everyone.pop(number)
    assert number == 0 or own[1] == int(port)
    return meet(str(number), own, everyone, len(everyone))


def mpi() -> list[str]:
    if os.environ["K_MPI_JOB_ROLE"] == "launcher":
        files = ("PRTE_MCA_prte_default_hostfile", "HYDRA_HOST_FILE")
        return [Path(os.environ[name]).read_text().strip() for name in files]
    return [name for name in os.environ if name.startswith(("OMPI_", "PRTE_", "HYDRA_"))]


def none() -> list[str]:
    names = ("WORLD_SIZE", "RANK", "MASTER_ADDR", "TF_CONFIG", "SHIFTWORK_WORLD_SIZE")
    return [f"{name}={os.environ[name]}" for name in names if name in os.environ]


PROGRAMS: tuple[Callable[[], list[str]], ...] = (torch, tf_config, rank, coordinator, mpi, none)

if __name__ == "__main__":
    chosen = next(each for each in PROGRAMS if each.__name__ == sys.argv[1])
    print(json.dumps(chosen()))
