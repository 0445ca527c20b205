"""GENERATED from proto/ by `make gen`. Do not edit."""

from __future__ import annotations

from collections.abc import Mapping

from libs.contracts.shown import Read, Shown

SHOWN: Mapping[str, Mapping[str, Shown]] = {
    "StartsAfter": {
        "role": Shown(about="Name of the other role.", required=True),
        "condition": Shown(
            about="What has to be true of all ranks of that role.", initial="running"
        ),
    },
    "ReadyProbe": {
        "port": Shown(
            about="Name of one of the role's ports: the rank is ready when that accepts a connection; left out: the program says so."
        ),
        "path": Shown(
            about="Asked for over HTTP at that port instead, such as /healthz: ready when the answer is 200 to 399."
        ),
        "period_seconds": Shown(
            about="Time between two probes of a rank.", min=1.0, max=300.0, unit="s", initial="2"
        ),
        "within_seconds": Shown(
            about="Time that the ranks of the role have to become ready, from when all of them run, while other roles wait for that.",
            min=1.0,
            max=86400.0,
            unit="s",
            initial="600",
        ),
    },
    "Port": {
        "name": Shown(
            about="Lower-case letters, digits and -, at most 15; the program finds the port in SHIFTWORK_PORT_NAME.",
            required=True,
        ),
        "port": Shown(
            about="Its number in pods; left out: one of the platform's range. Replicas that share a machine get other ones.",
            min=1024.0,
            max=65535.0,
        ),
    },
    "RestartRule": {
        "when": Shown(
            about="Which ends lead to a restart: none, every failure, also the end with code 0 (only with the scope rank), or failures with certain exit codes. Any other failure ends the task for good.",
            initial="on_failure",
        ),
        "exit_codes": Shown(
            about='With exit_code: codes and ranges of codes, such as "137" or "128-255"; a signal counts as 128 and its number.'
        ),
        "scope": Shown(
            about="What is restarted: the gang (the whole task, as a new attempt that counts as a retry), or the rank in its place.",
            initial="gang",
        ),
        "max_restarts": Shown(
            about="How often a rank is restarted in its place; only with the scope rank.",
            min=0.0,
            max=1000.0,
        ),
    },
    "Role": {
        "name": Shown(about="Unique in the task."),
        "replicas": Shown(
            about="How many it has; left out: 1, or with a single role the task's nodes.", min=1.0
        ),
        "command": Shown(
            about="The program and its arguments; with args, and where nodes run pods, it may be left out: the image's own.",
            long=True,
        ),
        "env": Shown(about="Environment variables, over the task's.", secret=True),
        "image": Shown(about="Container image; left out: the task's."),
        "gpus": Shown(
            about="GPUs of each replica; left out: the task's gpus_per_node; 0: CPU only.",
            min=0.0,
            max=1024.0,
        ),
        "cpus": Shown(
            about="Limit of each replica; left out: the task's.",
            min=0.0,
            max=65536.0,
            above=True,
            unit="cores",
        ),
        "memory_bytes": Shown(
            about="Limit of each replica; left out: the task's.",
            min=0.0,
            max=1125899906842624.0,
            above=True,
            unit="bytes",
        ),
        "spread": Shown(
            about="Whether each replica has a node that it shares with no other of its role; left out: only if the role has no size of its own."
        ),
        "auxiliary": Shown(
            about="Whether it rides along: it has no GPU and counts as no node, such as a launcher."
        ),
        "working_directory": Shown(about="Where its program starts; left out: the task's."),
        "ports": Shown(about="Ports at which each replica serves others, such as a dashboard."),
        "restart": Shown(
            about="What a failure of one of its replicas leads to; left out: a retry of the whole task, as far as retries are left."
        ),
        "starts_after": Shown(
            about="Roles that have to be there before the ranks of this one start; they also end after it."
        ),
        "ready": Shown(
            about="How and by when each replica becomes ready, for the roles that wait for that."
        ),
        "debug": Shown(
            about="What its ranks run in debug mode; left out: a program that waits until it is ended."
        ),
        "resume": Shown(
            about="What every attempt after the first does differently; left out: nothing."
        ),
        "args": Shown(about="Arguments after the command.", long=True),
        "pod": Shown(about="What the pods of this role request beside what the task's pods do."),
        "cpus_request": Shown(
            about="What each replica is planned with; left out: the task's, else its limit.",
            min=0.0,
            max=65536.0,
            above=True,
            unit="cores",
        ),
        "memory_request_bytes": Shown(
            about="What each replica is planned with; left out: the task's, else its limit.",
            min=0.0,
            max=1125899906842624.0,
            above=True,
            unit="bytes",
        ),
    },
    "Override": {
        "command": Shown(
            about="The program and its arguments, in the place of the role's command and args; left out: those.",
            long=True,
        ),
        "env": Shown(about="Environment variables, over the role's.", secret=True),
    },
    "DebugProgram": {
        "command": Shown(about="The program, and arguments.", long=True),
        "args": Shown(about="Arguments after the command.", long=True),
    },
    "EnvSource": {
        "name": Shown(about="Of the variable.", required=True),
        "secret": Shown(about="Name of the Secret."),
        "config_map": Shown(about="Name of the ConfigMap."),
        "field": Shown(about="Path of a field of the pod, such as status.podIP."),
        "key": Shown(about="Key in the Secret or ConfigMap."),
        "optional": Shown(about="Whether the pod may start without it."),
    },
    "PodRequest": {
        "image": Shown(about="Container image; left out: the site's.", options=("--image",)),
        "image_pull_policy": Shown(
            about="When the image is pulled; left out: as the cluster does.",
            choices=("Always", "IfNotPresent", "Never"),
        ),
        "image_pull_secrets": Shown(about="Names of Secrets in the namespace of the tasks."),
        "storage": Shown(
            about="Storage grants to mount, beside those that are mounted by default.",
            options=("--mount",),
            metavar="GRANT",
        ),
        "resources": Shown(
            about="More resources of each pod, such as rdma/hca=1.", options=("--resource",)
        ),
        "shm_bytes": Shown(
            about="Size of /dev/shm, such as 8Gi; left out: the site's.",
            options=("--shm",),
            unit="bytes",
        ),
        "capabilities": Shown(about="Linux capabilities to add, such as IPC_LOCK."),
        "env_from": Shown(about="Variables whose values are kept elsewhere."),
        "template": Shown(
            about="Part of a pod, merged over the platform's as far as the site allows.",
            options=("--pod-template",),
            read=Read.DOCUMENT,
            secret=True,
        ),
    },
    "RetryPolicy": {
        "max_retries": Shown(
            about="How often it is tried again after failures.",
            options=("--retries",),
            min=0.0,
            max=100.0,
        ),
        "user": Shown(
            about="The same for failures of the task itself, such as out of memory.",
            min=0.0,
            max=1000.0,
        ),
        "transient": Shown(
            about="The same for failures that seem to pass, such as SIGTERM from outside.",
            min=0.0,
            max=1000.0,
        ),
        "platform": Shown(
            about="The same for runs that the platform or the cluster lost, such as with a node; left out: any number of times.",
            min=0.0,
            max=1000.0,
        ),
        "unknown": Shown(
            about="The same for failures whose cause is not known, such as exit code 1.",
            min=0.0,
            max=1000.0,
        ),
    },
    "Completion": {
        "success": Shown(
            about="It has succeeded as soon as one of these holds for ranks that exited with 0; left out: all of all roles."
        ),
        "failure": Shown(
            about='It has failed as soon as one of these holds for ranks that failed, or no rule for success can be met any more; left out: any of any role. The rule "never" is never met.'
        ),
    },
    "PreemptionPolicy": {
        "mode": Shown(about="How the task is asked to leave.", initial="sdk"),
        "signal": Shown(
            about="Name of the signal for the signal mode, without SIG.", initial="USR1"
        ),
        "ack_deadline_seconds": Shown(
            about="Time to save a checkpoint when preempted.",
            options=("--ack-deadline",),
            min=1.0,
            max=3600.0,
            unit="s",
            initial="60",
        ),
    },
    "TaskSpec": {
        "name": Shown(
            about="Unique among the owner's live tasks; left out: made from the command.",
            options=("--name",),
        ),
        "group": Shown(about="Group of nodes.", options=("--group",), initial="default"),
        "priority": Shown(about="Level in the queue.", options=("--priority",), initial="normal"),
        "roles": Shown(
            about="Kinds of replicas; or a command instead: one role, one replica for each node."
        ),
        "gpus_per_node": Shown(
            about="GPUs on each node; left out: whole nodes; 0: CPU only.",
            options=("--gpus-per-node", "--gpus"),
            min=0.0,
            max=1024.0,
        ),
        "env": Shown(about="Environment variables of all roles.", options=("--env",), secret=True),
        "working_directory": Shown(
            about="Where the program starts; left out: here, if the server is on this machine.",
            options=("--workdir",),
            metavar="DIR",
            read=Read.FOLDER,
        ),
        "labels": Shown(about="For finding it again.", options=("--label", "-l")),
        "retry": Shown(about="What happens after failures."),
        "preemption": Shown(
            about="How the task is asked to leave: through the SDK, by a signal, or not at all.",
            options=("--preempt",),
            metavar="sdk|signal[:TERM]|kill",
            read=Read.MODE,
        ),
        "max_run_seconds": Shown(
            about="Ends the task after running so long; left out: never.",
            options=("--max-run-time",),
            min=0.0,
            max=316224000.0,
            above=True,
            unit="s",
        ),
        "fence_after_seconds": Shown(
            about="The SDK ends the program after being out of touch so long; left out: never.",
            options=("--fence-after",),
            min=10.0,
            max=2592000.0,
            unit="s",
        ),
        "cpus": Shown(
            about="Limit of each replica; left out: none.",
            min=0.0,
            max=65536.0,
            above=True,
            unit="cores",
        ),
        "memory_bytes": Shown(
            about="Limit of each replica; left out: none.",
            min=0.0,
            max=1125899906842624.0,
            above=True,
            unit="bytes",
        ),
        "nodes": Shown(
            about="How many nodes, all of them at once; left out: as many as replicas, 1 without roles.",
            options=("--nodes",),
            min=1.0,
            max=8192.0,
        ),
        "node_selector": Shown(
            about="Labels that its nodes must have.", options=("--node-selector",)
        ),
        "tolerations": Shown(
            about="Taints of nodes that it does not mind: key (whatever the value) or key=value.",
            options=("--tolerate",),
            metavar="KEY[=VALUE]",
            read=Read.TAINT,
        ),
        "pod": Shown(about="For runtimes with pods."),
        "wait_for_nodes": Shown(
            about="Wait for nodes that are to come, where the known ones could never hold it."
        ),
        "contract": Shown(
            about="How its ranks find each other: the variables and files of a framework.",
            options=("--contract",),
            initial="torch",
        ),
        "completion": Shown(
            about="When an attempt has succeeded or failed; left out: it succeeds when all ranks exit with 0, and fails when any rank fails."
        ),
        "run_mode": Shown(
            about="Run its program, wait paused, or debug: people enter its nodes.",
            options=("--mode",),
            initial="normal",
        ),
        "cpus_request": Shown(
            about="What each replica is planned with; left out: its limit.",
            min=0.0,
            max=65536.0,
            above=True,
            unit="cores",
        ),
        "memory_request_bytes": Shown(
            about="What each replica is planned with; left out: its limit.",
            min=0.0,
            max=1125899906842624.0,
            above=True,
            unit="bytes",
        ),
        "continues": Shown(about="The ended task that it goes on with.", hidden=True),
        "secret_env": Shown(
            about="Variables whose values are masked in the output.",
            options=("--secret-env",),
            metavar="NAME",
        ),
    },
    "Continuation": {
        "task_id": Shown(about="The task that it goes on with."),
        "chain": Shown(about="The first task of the chain."),
        "checkpoint": Shown(
            about="The last checkpoint of the chain; left out: from the beginning."
        ),
        "state_of": Shown(
            about="The last task of the chain that ever ran, whose life state it begins with; empty: none ran."
        ),
    },
    "Checkpoint": {
        "no": Shown(
            about="Counts the task's accepted checkpoints from 1; the highest is the one to resume from."
        ),
        "attempt": Shown(),
        "step": Shown(),
        "uri": Shown(),
        "digest": Shown(),
        "saved_at": Shown(),
        "task_id": Shown(
            about="The earlier task of the chain that saved it; empty: the task itself."
        ),
    },
}
