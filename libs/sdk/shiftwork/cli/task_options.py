"""Options of `shiftwork submit` that set fields. GENERATED from proto/ by `make gen`."""

from __future__ import annotations

from typing import NamedTuple


class TaskOption(NamedTuple):
    """An option and what it sets. ``read`` names how its text becomes the value."""

    field: str
    flags: tuple[str, ...]
    read: str
    repeated: bool
    help: str
    metavar: str = ""
    least: int | None = None


TASK_OPTIONS: tuple[TaskOption, ...] = (
    TaskOption(
        "name",
        ("--name",),
        "text",
        False,
        "Unique among the owner's live tasks; left out: made from the command.",
    ),
    TaskOption("group", ("--group",), "text", False, "Group of nodes. Left out: default."),
    TaskOption(
        "priority", ("--priority",), "priority", False, "Level in the queue. Left out: normal."
    ),
    TaskOption(
        "gpus_per_node",
        ("--gpus-per-node", "--gpus"),
        "number",
        False,
        "GPUs on each node; left out: whole nodes; 0: CPU only.",
        least=0,
    ),
    TaskOption(
        "env",
        ("--env",),
        "pairs",
        True,
        "Environment variables of all roles. Repeatable.",
        metavar="K=V",
    ),
    TaskOption(
        "working_directory",
        ("--workdir",),
        "folder",
        False,
        "Where the program starts; left out: here, if the server is on this machine.",
        metavar="DIR",
    ),
    TaskOption(
        "labels",
        ("--label", "-l"),
        "pairs",
        True,
        "For finding it again. Repeatable.",
        metavar="K=V",
    ),
    TaskOption(
        "retry.max_retries",
        ("--retries",),
        "number",
        False,
        "How often it is tried again after failures.",
        least=0,
    ),
    TaskOption(
        "preemption",
        ("--preempt",),
        "mode",
        False,
        "How the task is asked to leave: through the SDK, by a signal, or not at all.",
        metavar="sdk|signal[:TERM]|kill",
    ),
    TaskOption(
        "preemption.ack_deadline_seconds",
        ("--ack-deadline",),
        "duration",
        False,
        "Time to save a checkpoint when preempted. Left out: 60s.",
    ),
    TaskOption(
        "max_run_seconds",
        ("--max-run-time",),
        "duration",
        False,
        "Ends the task after running so long; left out: never.",
    ),
    TaskOption(
        "fence_after_seconds",
        ("--fence-after",),
        "duration",
        False,
        "The SDK ends the program after being out of touch so long; left out: never.",
    ),
    TaskOption(
        "nodes",
        ("--nodes",),
        "number",
        False,
        "How many nodes, all of them at once; left out: as many as replicas, 1 without roles.",
        least=1,
    ),
    TaskOption(
        "node_selector",
        ("--node-selector",),
        "pairs",
        True,
        "Labels that its nodes must have. Repeatable.",
        metavar="K=V",
    ),
    TaskOption(
        "tolerations",
        ("--tolerate",),
        "taint",
        True,
        "Taints of nodes that it does not mind: key (whatever the value) or key=value. Repeatable.",
        metavar="KEY[=VALUE]",
    ),
    TaskOption("pod.image", ("--image",), "text", False, "Container image; left out: the site's."),
    TaskOption(
        "pod.storage",
        ("--mount",),
        "text",
        True,
        "Storage grants to mount, beside those that are mounted by default. Repeatable.",
        metavar="GRANT",
    ),
    TaskOption(
        "pod.resources",
        ("--resource",),
        "pairs",
        True,
        "More resources of each pod, such as rdma/hca=1. Repeatable.",
        metavar="K=V",
    ),
    TaskOption(
        "pod.shm_bytes",
        ("--shm",),
        "size",
        False,
        "Size of /dev/shm, such as 8Gi; left out: the site's.",
    ),
    TaskOption(
        "pod.template",
        ("--pod-template",),
        "document",
        False,
        "Part of a pod, merged over the platform's as far as the site allows.",
    ),
    TaskOption(
        "contract",
        ("--contract",),
        "contract",
        False,
        "How its ranks find each other: the variables and files of a framework. Left out: torch.",
    ),
    TaskOption(
        "run_mode",
        ("--mode",),
        "runmode",
        False,
        "Run its program, wait paused, or debug: people enter its nodes. Left out: normal.",
    ),
    TaskOption(
        "secret_env",
        ("--secret-env",),
        "text",
        True,
        "Variables whose values are masked in the output. Repeatable.",
        metavar="NAME",
    ),
)
# Highest first.
PRIORITIES = (
    "extreme_high",
    "very_high",
    "high",
    "above_normal",
    "normal",
    "below_normal",
    "low",
    "idle",
    "auto",
)
CONTRACTS = ("torch", "tf_config", "rank", "coordinator", "mpi", "none")
RUN_MODES = ("normal", "debug", "pause")
# The states of tasks that have not ended, and of those that have.
LIVE = ("queued", "starting", "running", "preempting", "killing", "paused")
ENDED = ("succeeded", "failed", "stopped", "rejected")
# Of those that hold nodes.
HOLDING = ("starting", "running", "preempting", "killing")
