"""The texts of the command line's help: groups of commands, examples, other names, suggestions.

Tables, and the functions that apply them. Called by ``session.Root`` and ``main.run``.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Iterable, Mapping, Sequence

# The groups of the main help, the first steps first. A command that is in none is among the last.
PANELS: Mapping[str, tuple[str, ...]] = {
    "First steps": ("up", "submit", "ls", "show", "logs", "stop", "doctor"),
    "Tasks": (
        "top",
        "queue",
        "explain",
        "wait",
        "exec",
        "debug",
        "events",
        "pause",
        "resume",
        "priority",
        "retry",
        "continue",
    ),
    "Nodes and sharing": ("nodes", "node", "group", "quota", "usage", "policy", "simulate"),
    "Watching": ("metrics", "abnormal", "notify", "monitor-credentials"),
    "People and access": ("login", "logout", "whoami", "context", "user", "team", "token", "audit"),
    "The platform": ("down", "backup", "restore", "k8s", "dead-letters", "completion", "version"),
}
OTHERS = "Other commands"

# Commands of other tools and the command that each stands for. Not shown in the help.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "cancel": ("stop",),
    "kill": ("stop",),
    "delete": ("stop",),
    "ps": ("ls",),
    "list": ("ls",),
    "pending": ("queue",),
    "describe": ("show",),
    "run": ("submit",),
    "rerun": ("retry",),
}
# With a task argument the first, else the second.
STATUS = ("show", "ls")

SHORT = 2
# Options of other tools: ours, with its value where that is meant, if the command has it.
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "--gpu": ("--gpus-per-node", "--gpus"),
    "--gpu-per-node": ("--gpus-per-node",),
    "--gres": ("--gpus-per-node",),
    "--num-nodes": ("--nodes",),
    "--node": ("--nodes",),
    "-N": ("--nodes",),
    "--job-name": ("--name",),
    "-J": ("--name",),
    "--time": ("--max-run-time",),
    "--time-limit": ("--max-run-time",),
    "--timeout": ("--max-run-time",),
    "--walltime": ("--max-run-time",),
    "--partition": ("--group",),
    "--queue": ("--group",),
    "-p": ("--group", "--priority"),
    "--qos": ("--priority",),
    "--environment": ("--env",),
    "-e": ("--env",),
    "--cwd": ("--workdir",),
    "--chdir": ("--workdir",),
    "--working-dir": ("--workdir",),
    "--working-directory": ("--workdir",),
    "--constraint": ("--node-selector",),
    "--selector": ("--label", "--node-selector"),
    "--toleration": ("--tolerate",),
    "--debug": ("--mode debug",),
    "--max-retries": ("--retries",),
    "--restart": ("--retries",),
    "--wait": ("--follow",),
    "--lines": ("--tail",),
    "-n": ("--tail", "--limit", "--nodes"),
    "--status": ("--state",),
    "--order-by": ("--sort",),
}

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "submit": (
        "submit -f -- python train.py",
        "submit --nodes 4 --gpus-per-node 8 --priority high -- torchrun train.py",
        "submit --file task.yaml --nodes 2",
        "submit --dry-run --nodes 4 -- true",
        "submit --mode debug --nodes 2 -- python train.py",
    ),
    "queue": (
        "queue",
        "queue --group default --limit 20",
        "queue --mine --watch",
    ),
    "ls": (
        "ls",
        "ls --all --mine --sort name",
        "ls -l project=vision -l 'stage!=test' --state queued,running",
        "ls --watch",
    ),
    "top": ("top", "top -A -n 5"),
    "show": ("show resnet",),
    "explain": ("explain resnet", "explain resnet --history"),
    "wait": ("wait resnet --timeout 2h", "wait resnet --for running"),
    "pause": ("pause resnet bert",),
    "resume": ("resume resnet bert",),
    "stop": ("stop resnet bert", "stop --all -l project=vision"),
    "priority": ("priority resnet bert high",),
    "retry": ("retry resnet",),
    "continue": ("continue resnet",),
    "exec": ("exec resnet", "exec resnet --rank 1 -- nvidia-smi"),
    "debug": ("debug resnet", "debug resnet --off"),
    "logs": ("logs resnet -f", "logs resnet --rank 1 --tail 20"),
    "events": ("events resnet", "events -f --type run.exited"),
    "nodes": ("nodes",),
    "node cordon": ("node cordon n7",),
    "node uncordon": ("node uncordon n7",),
    "node drain": ("node drain n7 --wait --timeout 30m",),
    "node label": ("node label n7 disk=nvme", "node label n7 disk --remove"),
    "node taint": ("node taint n7 reserved=vision",),
    "group ls": ("group ls",),
    "abnormal": ("abnormal", "abnormal --team vision --rule idle_gpus", "abnormal --rules"),
    "notify ls": ("notify ls", "notify ls --all"),
    "notify set": (
        "notify set mine --to https://example.org/hook --on failed --on preempted",
        "notify set ops --to https://example.org/hook --tasks all",
        "notify set mail --to mail --on failed --on waiting",
    ),
    "notify rm": ("notify rm mine",),
    "notify undelivered": ("notify undelivered mine",),
    "notify replay": ("notify replay mine",),
    "monitor-credentials": (
        "monitor-credentials grafana",
        "monitor-credentials",
        "monitor-credentials grafana --remove",
    ),
    "quota ls": ("quota ls",),
    "quota set": (
        "quota set --user ann --gpus 8",
        "quota set --team vision --unlimited",
        "quota set --grant --user ann --priority high --gpus 4 --expires 30d",
    ),
    "quota default": ("quota default normal", "quota default 8"),
    "usage": (
        "usage --from 30d --group-by team,outcome",
        "usage --from 2026-11-01 --to 2026-12-01 --group-by day,user --csv > november.csv",
    ),
    "quota explain": ("quota explain", "quota explain --user ann --group default"),
    "policy show": ("policy show", "policy show training"),
    "policy set": ("policy set policy.yaml",),
    "policy unset": ("policy unset training",),
    "policy dry-run": ("policy dry-run policy.yaml",),
    "user add": ("user add ann --team vision", "user add olga --role operator"),
    "user set": (
        "user set ann --disable",
        "user set ann --archive",
        "user set ann --mail ann@example.org",
    ),
    "user show": ("user show ann",),
    "user rm": ("user rm ann",),
    "team add": ("team add vision", "team add vision --default-group a100"),
    "team set": ("team set vision --default-priority low",),
    "token create": (
        "token create --user ann --expires-in 90d",
        "token create --name nightly --scope tasks --expires-in 30d",
    ),
    "audit": ("audit --who ann --from 7d", "audit --action quota --csv > quotas.csv"),
    "dead-letters ls": ("dead-letters ls",),
    "completion": ("completion bash > ~/.shiftwork-completion",),
    "up": ("up --nodes 2 --slots 2", "up --detach"),
    "down": ("down",),
    "doctor": ("doctor",),
    "simulate": ("simulate synthetic:2000 --nodes 32 --out try",),
}

# The field of a document that ``-o name`` prints, for each command that prints things with names.
NAMES: Mapping[str, str] = {
    **dict.fromkeys(("submit", "ls", "queue", "show", "wait", "pause", "resume", "stop"), "id"),
    **dict.fromkeys(("priority", "retry", "continue", "debug"), "id"),
    **dict.fromkeys(("nodes", "node ls", "node cordon", "node uncordon", "node drain"), "id"),
    **dict.fromkeys(("node label", "node taint", "token ls", "dead-letters ls"), "id"),
    **dict.fromkeys(
        ("group ls", "user ls", "user show", "user add", "user set", "team ls", "team add"), "name"
    ),
    **dict.fromkeys(("user rm", "team rm"), "name"),
    **dict.fromkeys(("context ls", "context show"), "name"),
    "policy show": "group",
}

# A backspace alone in its line keeps the lines of the paragraph from being joined.
_LINES = "\b\nExamples:"

_PLACE = {name: place for place, name in enumerate(n for names in PANELS.values() for n in names)}
_PANEL = {name: panel for panel, names in PANELS.items() for name in names}


def ordered(names: Sequence[str]) -> list[str]:
    """Commands in the order of the main help."""
    return sorted(names, key=lambda name: _PLACE.get(name, len(_PLACE)))


def panels(names: Iterable[str]) -> dict[str, list[str]]:
    """The commands by group, both in the order of the main help."""
    found: dict[str, list[str]] = {}
    for name in ordered(list(names)):
        found.setdefault(_PANEL.get(name, OTHERS), []).append(name)
    return found


def dress(command: Any, *path: str) -> Any:  # noqa: ANN401 - Typer's own command
    """The command with its examples, and so everything below it."""
    shown = EXAMPLES.get(" ".join(path), ())
    if shown and not (command.epilog or "").startswith(_LINES):
        lines = "\n".join([_LINES, *(f"  shiftwork {line}" for line in shown)])
        command.epilog = f"{lines}\n\n{command.epilog or ''}"
    below: dict[str, Any] = getattr(command, "commands", {})
    for name, each in below.items():
        dress(each, *path, name)
    return command


def expanded(words: Sequence[str]) -> list[str]:
    """The command line with the command's own name in place of another tool's."""
    first, *rest = words
    if first == "status":
        named = any(not word.startswith("-") for word in rest)
        return [STATUS[0] if named else STATUS[1], *rest]
    return [*ALIASES.get(first, (first,)), *rest]


def suggestion(option: str, known: Sequence[str]) -> str:
    """A suggestion for an unknown option; empty if no option is similar."""
    ours = [each for each in SYNONYMS.get(option, ()) if each.split()[0] in known]
    if ours:
        return f"did you mean {ours[0]}?"
    # Without the dashes, which all options have.
    names = {each[2:]: each for each in known if each.startswith("--")}
    word = option.lstrip("-")
    # Every short word is near to another.
    near = get_close_matches(word, list(names), 1) if len(word) > SHORT else []
    return f"did you mean {names[near[0]]}?" if near else ""


def meant(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """``did you mean NAME?`` for the known name that is nearest; empty if none is near."""
    near = get_close_matches(word, list(known), 1, cutoff)
    return f"did you mean {near[0]}?" if near else ""
