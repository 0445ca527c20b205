"""The launcher's settings."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from libs.contracts.ids import DNS_LABEL_FORM, LABEL_KEY_RULE, NAME_FORM, is_label_key
from libs.contracts.tcp_ports import GATEWAY_PORT
from libs.pods.kubernetes_names import AGENT_LABEL, AGENT_NAMESPACE, AGENT_PORT, TASKS_NAMESPACE
from libs.pods.pod_policy import PodPolicy, read_policy
from libs.service.settings import BaseServiceSettings
from services.launcher.domain.master_ports import MASTER_PORTS
from services.launcher.nodes_file import check_labels, check_taints

# A group, or a namespace.
NAME = f"^{NAME_FORM}$"
NAMESPACE = f"^{DNS_LABEL_FORM}$"
SECRET_ENV_PATTERNS = (
    *("*TOKEN", "*PASSWORD", "*PASSWD", "*SECRET"),
    *("*API_KEY", "*ACCESS_KEY", "*SECRET_KEY", "*PRIVATE_KEY"),
)


class LauncherSettings(BaseServiceSettings):
    """Environment variables ``SHIFTWORK_LAUNCHER_…``."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="SHIFTWORK_LAUNCHER_")

    runtime: Literal["process", "kubernetes"] = "process"
    # Holds the supervisors' records, ranks' output and the runs' own folders.
    data_folder: Path = Path("/var/lib/shiftwork/launcher")
    # Virtual nodes local-0 … with so many slots each; 0 nodes: this machine with its own GPUs.
    virtual_nodes: int = Field(default=0, ge=0, le=4096)
    slots_per_node: int = Field(default=2, ge=0, le=1024)
    node_group: str = Field(default="default", pattern=NAME)
    # Of every node of this machine; ``nodes_file`` has the differences, in YAML or JSON:
    # local-0: {group: dev, labels: {zone: a, leaf: a1}, taints: [reserved=vision]}
    node_labels: dict[str, str] = Field(default_factory=dict)
    node_taints: tuple[str, ...] = ()
    nodes_file: Path | None = None

    # Values in the tasks' environment. The gateway's URL as tasks reach it:
    task_url: str = f"http://127.0.0.1:{GATEWAY_PORT}"
    run_token_key_file: Path
    # Run by root, one of task_user, task_users and tasks_as_root must be set. A user's name: all
    # tasks run as that user.
    task_user: str = ""
    # FIRST-LAST: each owner's tasks run as a user number of their own from this range.
    task_users: str = ""
    # As root: everybody who may submit has all rights on this machine.
    tasks_as_root: bool = False
    # Begins with this interpreter's folder, so that `python train.py` finds the SDK.
    task_path: str = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    task_lang: str = "C.UTF-8"
    # The values of tasks' variables with such names, in upper or lower case, are masked in their
    # output, beside those that a task declares. Of processes only.
    secret_env_patterns: tuple[str, ...] = SECRET_ENV_PATTERNS
    master_addr: str = "127.0.0.1"
    # Below the kernel's range of ephemeral ports.
    master_port_first: int = Field(default=MASTER_PORTS.first, ge=1024, le=65_535)
    master_port_last: int = Field(default=MASTER_PORTS.last, ge=1024, le=65_535)

    # Runtime kubernetes. The namespace of the tasks' pods:
    kube_namespace: str = Field(default=TASKS_NAMESPACE, pattern=NAMESPACE)
    # Empty: the cluster that the launcher runs in; else what KUBECONFIG names.
    kube_config: Path | None = None
    # Which nodes are ours, as `kubectl -l` takes it; empty: all but those of the control plane.
    kube_node_selector: str = ""
    # The label whose value is a node's group; without it the node is in ``node_group``.
    kube_group_label: str = "shiftwork.dev/group"
    # Empty: the resource of the pod policy.
    kube_gpu_resource: str = ""
    # What pods get and may request (docs/pods.md); none: the defaults.
    pod_policy_file: Path | None = None
    kube_parallel_max: int = Field(default=32, ge=1, le=512)
    kube_call_seconds: float = Field(default=10.0, gt=0, le=120)
    kube_tries_max: int = Field(default=4, ge=1, le=10)
    kube_page_objects: int = Field(default=500, ge=10, le=5000)
    # How long a watch lives before everything is listed again, and the silence that counts as a
    # broken connection.
    kube_watch_seconds: float = Field(default=300.0, ge=5, le=3600)
    kube_idle_seconds: float = Field(default=90.0, ge=5, le=3600)
    kube_first_look_seconds: float = Field(default=30.0, gt=0, le=600)
    # The pods of a run that is over, and with them their logs on the nodes, stay so long.
    kube_pods_keep_seconds: float = Field(default=60.0, ge=0, le=86_400)
    kube_sweep_tick_seconds: float = Field(default=5.0, gt=0, le=600)
    # The agents of the nodes, which measure nodes and pods for ``sample_seconds``: where they are,
    # how they are found, and the file with what they are shown; without it nothing is measured.
    kube_agent_namespace: str = Field(default=AGENT_NAMESPACE, pattern=NAMESPACE)
    kube_agent_label: str = AGENT_LABEL
    kube_agent_port: int = Field(default=AGENT_PORT, ge=1, le=65_535)
    kube_agent_token_file: Path | None = None
    # An agent may take so long for a sample; so many are asked at a time. They are listed again
    # after so long, and when one has failed.
    kube_agent_seconds: float = Field(default=5.0, gt=0, le=60)
    kube_agent_parallel_max: int = Field(default=32, ge=1, le=512)
    kube_agent_refresh_seconds: float = Field(default=60.0, gt=0, le=3600)

    # A pod may be pending for so long because its image cannot be pulled, or its container not be
    # made, before its run has failed.
    image_pull_seconds: float = Field(default=120.0, ge=0, le=86_400)
    create_seconds: float = Field(default=60.0, ge=0, le=86_400)
    # Before it is killed, a run may take so long to leave: after its acknowledgement, when one of
    # its gang is gone, and in all other cases (torchrun takes 30 seconds).
    patience_acked_seconds: float = Field(default=1.0, ge=0, le=3600)
    patience_mates_seconds: float = Field(default=5.0, ge=0, le=3600)
    patience_seconds: float = Field(default=35.0, ge=0, le=3600)
    # A launched run that has not started is reported after this time, and again at most this often.
    delay_told_seconds: float = Field(default=5.0, gt=0, le=3600)

    # How long a gang may take to exit after its acknowledgement.
    exit_grace_seconds: float = Field(default=10.0, ge=0, le=3600)
    # A silent node is not ready after the lease; what ran there is made sure of after the fence.
    lease_seconds: float = Field(default=5.0, gt=0, le=3600)
    fence_seconds: float = Field(default=15.0, gt=0, le=86_400)
    # After so many failed starts in a row, of different tasks, a node takes no new runs for so
    # long; each further failure doubles the time, up to the most.
    quarantine_after_starts: int = Field(default=3, ge=1, le=1000)
    quarantine_seconds: float = Field(default=600.0, gt=0, le=86_400)
    quarantine_seconds_max: float = Field(default=14_400.0, gt=0, le=604_800)
    look_tick_seconds: float = Field(default=1.0, gt=0, le=60)
    reconcile_tick_seconds: float = Field(default=5.0, gt=0, le=60)
    actions_parallel_max: int = Field(default=64, ge=1, le=1024)
    # A failed action is tried again after this, doubling up to the most.
    retry_first_seconds: float = Field(default=0.2, gt=0, le=60)
    retry_most_seconds: float = Field(default=5.0, gt=0, le=300)
    supervisor_call_seconds: float = Field(default=3.0, gt=0, le=60)
    supervisor_idle_seconds: float = Field(default=30.0, gt=0, le=86_400)
    # A supervisor that lives but has not answered for so long hangs, and is ended with its ranks.
    supervisor_hung_seconds: float = Field(default=300.0, gt=0, le=86_400)
    # How much of one rank's output is written to its file; the rest is dropped, with a notice.
    output_bytes_max: int = Field(default=16 << 30, ge=1 << 16, le=1 << 50)
    # Processes and threads of one rank; of one user where control groups (version 2) cannot limit
    # them and tasks run as other users.
    pids_max: int = Field(default=32_768, ge=16, le=4_194_304)
    # And never more than this part of all that the machine can have (kernel.pid_max).
    pids_part_max: float = Field(default=0.25, gt=0, le=1)
    # The output files of a forgotten run are kept so long (the log-collector has its own copies).
    output_keep_seconds: float = Field(default=14 * 86_400.0, gt=0)
    # Ended runs and their checkpoints are remembered so long after the task's last run.
    past_keep_seconds: float = Field(default=30 * 86_400.0, gt=0)
    # How often nodes and the ranks on them are measured; 0: never. The monitor's finest series have
    # the same distance.
    sample_seconds: float = Field(default=10.0, ge=0, le=600)
    # Terminals and commands in running ranks, in all.
    exec_sessions_max: int = Field(default=64, ge=0, le=10_000)
    # Each side of a session breaks its silence after this time, and ends the session if it hears
    # nothing for the other.
    exec_heartbeat_seconds: float = Field(default=5.0, gt=0, le=60)
    exec_silence_seconds: float = Field(default=20.0, gt=0, le=600)
    reemit_runs_max: int = Field(default=20_000, ge=0)

    @model_validator(mode="after")
    def _ranges(self) -> LauncherSettings:
        if self.master_port_first > self.master_port_last:
            raise self.conflict(
                "{master_port_first} {first} is above {master_port_last} {last}",
                "give a range",
                first=self.master_port_first,
                last=self.master_port_last,
            )
        if self.fence_seconds < self.lease_seconds:
            raise self.conflict(
                "{fence_seconds} is below {lease_seconds}; a fence comes after the lease",
                "set {fence_seconds} to that of {lease_seconds} or more",
            )
        if not is_label_key(self.kube_group_label):
            raise self.conflict(
                "{kube_group_label} {given!r} is no label's key",
                "set {kube_group_label} to {rule}",
                given=self.kube_group_label,
                rule=LABEL_KEY_RULE,
            )
        with self._naming("node_labels"):
            check_labels(self.node_labels)
        with self._naming("node_taints"):
            check_taints(self.node_taints)
        return self

    @contextlib.contextmanager
    def _naming(self, name: str) -> Generator[None]:
        try:
            yield
        except ValueError as problem:
            what = f"{{{name}}}: {{problem}}"
            raise self.conflict(what, f"correct {{{name}}}", problem=problem) from None

    @field_validator("pod_policy_file")
    @classmethod
    def _readable(cls, path: Path | None) -> Path | None:
        """Refuse to start with a policy that is wrong; the error names the place."""
        if path is not None:
            read_policy(path)
        return path

    def pod_policy(self) -> PodPolicy:
        """The policy of pods, read now."""
        policy = read_policy(self.pod_policy_file) if self.pod_policy_file else PodPolicy()
        if self.kube_gpu_resource:
            policy = policy.model_copy(update={"gpu_resource": self.kube_gpu_resource})
        return policy

    def run_token_key(self) -> bytes:
        """The key of the run tokens, read now."""
        return self.run_token_key_file.read_text().strip().encode()
