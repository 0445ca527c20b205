"""How simulated nodes and pods behave: kwok's own fast stages, and pods that misbehave on demand.

With kwok's stages every pod runs at once, forever, and is gone as soon as it is deleted. The name
of a pod's first image selects another behaviour, whatever its registry is:

=======================  ==========================================================================
``simulated/missing``    the image cannot be pulled: ErrImagePull, then ImagePullBackOff
``simulated/hangs``      its containers are never started
``simulated/exits:N``    runs for a second, then its containers exit with N
``simulated/oom``        runs for a second, then is killed because it took too much memory
``simulated/stubborn``   deleted, it takes the whole of its grace period
=======================  ==========================================================================
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from tools.cluster.programs import data_folder

USED = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
BEHAVIOUR = '.spec.containers[0].image | capture("(^|/)simulated/(?<name>[a-z]+)") | .name'
# Which behaviours take a pod out of which of kwok's stages.
WITHOUT = {"pod-ready": ["missing", "hangs"], "pod-delete": ["stubborn"]}
PULL_FAILS = "Failed to pull image: not found"
RUNS_MILLISECONDS = 1_000
BACK_OFF_MILLISECONDS = 1_000
# By default kwok has four requests in flight, and lists the pods of one node after the other:
# with a thousand nodes on a busy machine that takes minutes.
PACE = {
    "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
    "kind": "KwokConfiguration",
    "options": {
        "podPlayStageParallelism": 32,
        "nodePlayStageParallelism": 32,
        "nodeLeaseParallelism": 8,
        "podsOnNodeSyncParallelism": 16,
    },
}

EACH_CONTAINER = """
{{ range .spec.containers }}
- image: {{ .image | Quote }}
  name: {{ .name | Quote }}
  ready: false
  restartCount: 0
  started: false
"""
TERMINATED = """
{{ $now := Now }}
{{ $code := %(code)s }}
phase: {{ if eq $code 0 }}Succeeded{{ else }}Failed{{ end }}
conditions:
- {type: Ready, status: "False", lastTransitionTime: {{ $now | Quote }}}
- {type: ContainersReady, status: "False", lastTransitionTime: {{ $now | Quote }}}
containerStatuses:
{{ $started := .status.startTime }}
%(each)s
  state:
    terminated:
      exitCode: {{ $code }}
      reason: {{ if eq $code 0 }}Completed{{ else }}%(reason)s{{ end }}
      startedAt: {{ $started | Quote }}
      finishedAt: {{ $now | Quote }}
{{ end }}
"""
WAITING = """
{{ $now := Now }}
phase: Pending
startTime: {{ $now | Quote }}
containerStatuses:
%(each)s
  state:
    waiting:
      reason: %(reason)s
      message: "%(message)s"
{{ end }}
"""
EXIT_CODE = '(index .spec.containers 0).image | regexFind "[0-9]+$" | int'
WAITS_FOR = ".status.containerStatuses[0].state.waiting.reason"


def write_stages(folder: Path) -> list[Path]:
    """The files for kwok's ``--config``: its pace, and the stages."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made = [*_stages_of_kwok(), *misbehaviours()]
    files = {"kwok": PACE, **{stage["metadata"]["name"]: stage for stage in made}}
    written = [folder / f"{name}.json" for name in files]
    for path, content in zip(written, files.values(), strict=True):
        path.write_text(json.dumps(content, indent=2), "utf-8")
    return written


def _stages_of_kwok() -> list[dict[str, Any]]:
    stages: list[dict[str, Any]] = []
    for used in USED:
        for source in sorted((data_folder("kwok") / used).glob("*.yaml")):
            stage = yaml.safe_load(source.read_text("utf-8"))
            if stage["kind"] != "Stage":
                continue
            without = WITHOUT.get(stage["metadata"]["name"])
            if without:
                stage["spec"]["selector"]["matchExpressions"].append(
                    {"key": BEHAVIOUR, "operator": "NotIn", "values": without}
                )
            stages.append(stage)
    return stages


def misbehaviours() -> list[dict[str, Any]]:
    """The stages of the table above."""
    failing = {"each": EACH_CONTAINER, "reason": "ErrImagePull", "message": PULL_FAILS}
    backing_off = {**failing, "reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    ended = {"each": EACH_CONTAINER, "reason": "Error", "code": EXIT_CODE}
    killed = {"each": EACH_CONTAINER, "reason": "OOMKilled", "code": "137"}
    pending, running = _is(".status.phase", "Pending"), _is(".status.phase", "Running")
    back_off = {"durationMilliseconds": BACK_OFF_MILLISECONDS}
    runs = {"durationMilliseconds": RUNS_MILLISECONDS}
    grace = {"durationFrom": {"expressionFrom": ".metadata.deletionTimestamp"}}
    alive = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}
    deleted = {"key": ".metadata.deletionTimestamp", "operator": "Exists"}
    first = {"key": WAITS_FOR, "operator": "DoesNotExist"}
    again = _is(WAITS_FOR, "ErrImagePull")
    return [
        _stage("missing", "missing", [alive, pending, first], status=WAITING % failing),
        _stage("backing-off", "missing", [alive, again], back_off, status=WAITING % backing_off),
        _stage("exits", "exits", [alive, running], runs, status=TERMINATED % ended),
        _stage("oom", "oom", [alive, running], runs, status=TERMINATED % killed),
        _stage("stubborn", "stubborn", [deleted], grace, status=None),
    ]


def _is(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": [value]}


def _stage(
    name: str,
    behaviour: str,
    when: list[dict[str, Any]],
    delay: dict[str, Any] | None = None,
    *,
    status: str | None,
) -> dict[str, Any]:
    """A stage for pods of a behaviour; without a ``status`` the pod is gone."""
    what: dict[str, Any] = {"delete": True} if status is None else {"statusTemplate": status}
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": f"pod-{name}"},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
            "selector": {"matchExpressions": [_is(BEHAVIOUR, behaviour), *when]},
            **({"delay": delay} if delay else {}),
            "next": what,
        },
    }
