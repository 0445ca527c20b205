"""Check a filled spec field by field: all errors are reported at once, with value and fix.

Called by ``validate.py``. The values of environment variables and the words of commands may be
secrets: an error names the variable or the position and never the content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from libs.contracts.base import Message
from libs.contracts.ids import (
    LABEL_KEY_RULE,
    LABEL_VALUE_RULE,
    NAME_RULE,
    RETRY_OF,
    is_label_key,
    is_label_value,
    is_name,
    is_taint,
)
from libs.contracts.kinds import kinds
from libs.contracts.limits import SECRET_CHARACTERS_MIN, SECRET_ENV_MAX
from libs.contracts.messages import (
    DebugProgram,
    FieldError,
    Override,
    PreemptMode,
    Role,
    TaskSpec,
)
from libs.contracts.rank_sizes import REQUESTS, limits_of, size_of
from libs.contracts.variables import is_variable
from libs.contracts.wording import as_text, field_error
from services.submit.domain.completion_fields import check_completion
from services.submit.domain.contract_fields import check_contract
from services.submit.domain.facts import Limits, bound_setting
from services.submit.domain.port_fields import check_ports
from services.submit.domain.restart_fields import check_restart
from services.submit.domain.start_fields import check_start

TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
ROLE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?")
PATH_CHARACTERS_MAX = 4096
SIGNALS = frozenset({"USR1", "USR2", "TERM", "INT", "HUP", "QUIT", "ALRM"})

# What a limit's name begins with as an environment variable of this service.
SETTING = "SHIFTWORK_SUBMIT_"

Errors = Iterator[FieldError]


def _set_by(limit: str) -> str:
    """Who sets a limit, and how: the end of a fix."""
    return f"; an administrator sets the limit: {SETTING}{limit.upper()}"


def check_fields(spec: TaskSpec, limits: Limits) -> Errors:
    """Every error in the spec that does not depend on the cluster."""
    for check in CHECKS:
        yield from check(spec, limits)


def check_person(field: str, value: str) -> Errors:
    """A user's or team's name."""
    if not is_name(value):
        yield field_error(field, value, "is not a name", f"use {NAME_RULE}")


def _names(spec: TaskSpec, _limits: Limits) -> Errors:
    if not TASK_NAME.fullmatch(spec.name):
        yield field_error(
            "name",
            spec.name,
            "is not a task name",
            "use 1 to 63 of letters, digits, '.', '_' and '-', beginning with a letter or digit",
        )
    if not is_name(spec.group):
        yield field_error(
            "group",
            spec.group,
            "is not a group name",
            f"use {NAME_RULE}",
        )


def _roles(spec: TaskSpec, limits: Limits) -> Errors:
    if not 1 <= len(spec.roles) <= limits.roles_max:
        yield field_error(
            "roles",
            len(spec.roles),
            f"a task has 1 to {limits.roles_max} roles",
            "give a command, or at least one role" + (_set_by("roles_max") if spec.roles else ""),
        )
    if spec.roles and all(role.auxiliary for role in spec.roles):
        yield field_error(
            "roles[0].auxiliary",
            True,
            "no role is left that it could ride along with",
            "leave auxiliary out of at least one role",
        )
    seen: set[str] = set()
    for index, role in enumerate(spec.roles[: limits.roles_max]):
        yield from _role(f"roles[{index}]", role, seen, limits)
        seen.add(role.name)


def _role(at: str, role: Role, seen: set[str], limits: Limits) -> Errors:
    if not ROLE_NAME.fullmatch(role.name):
        yield field_error(
            f"{at}.name", role.name, "is not a role name", "use 1 to 32 of a-z, 0-9 and -"
        )
    elif role.name in seen:
        yield field_error(
            f"{at}.name", role.name, "is the name of two roles", "give each role a name of its own"
        )
    if not 1 <= role.replicas <= limits.nodes_max:
        yield field_error(
            f"{at}.replicas",
            role.replicas,
            f"a role has 1 to {limits.nodes_max} replicas",
            "leave it out, or choose a number in that range"
            + (_set_by("nodes_max") if role.replicas > limits.nodes_max else ""),
        )
    if role.auxiliary and 0 < (role.gpus or 0) <= limits.gpus_per_node_max:
        yield field_error(
            f"{at}.gpus",
            role.gpus,
            "an auxiliary role has no GPUs: it rides along with the others",
            "leave gpus out, or auxiliary",
        )
    yield from _directory(f"{at}.working_directory", role.working_directory)
    yield from _command(at, role, limits)
    yield from _environment(f"{at}.env", role.env, limits)
    if role.resume is not None:
        yield from _override(f"{at}.resume", role.resume, limits)
    if role.debug is not None:
        yield from _debug(f"{at}.debug", role.debug, limits)


def _override(at: str, override: Override, limits: Limits) -> Errors:
    if not override.command and not override.env:
        yield field_error(at, "", "changes nothing", "give it a command or env, or leave it out")
    if override.command:
        yield from _command(at, Role(command=override.command), limits)
    yield from _environment(f"{at}.env", override.env, limits)


def _debug(at: str, debug: DebugProgram, limits: Limits) -> Errors:
    if debug.command:
        yield from _command(at, Role(command=debug.command, args=debug.args), limits)
        return
    fix = "give the program, or leave debug out: its ranks then run a program that waits"
    yield field_error(f"{at}.command", "", "is empty", fix)


def _command(above: str, role: Role, limits: Limits) -> Errors:
    """The command with its arguments, or the arguments of the image's own program."""
    at, words = f"{above}.command" if role.command else f"{above}.args", (*role.command, *role.args)
    if not words or (role.command and not role.command[0]):
        yield field_error(f"{above}.command", "", "is empty", "give the program and its arguments")
        return
    if len(words) > limits.command_arguments_max:
        yield field_error(
            at,
            f"{len(words)} arguments",
            f"has more than {limits.command_arguments_max} arguments",
            f"put them in a file that the program reads{_set_by('command_arguments_max')}",
        )
    size = sum(len(word.encode()) for word in words)
    if size > limits.command_bytes_max:
        yield field_error(
            at,
            f"{size} bytes",
            f"is longer than {limits.command_bytes_max} bytes",
            f"put the script in a file and run that{_set_by('command_bytes_max')}",
        )
    for name in ("command", "args"):
        for index, word in enumerate(getattr(role, name)):
            if "\0" in word:
                place = f"{above}.{name}[{index}]"
                yield field_error(place, "", "holds a NUL character", "remove the NUL character")


def _task_environment(spec: TaskSpec, limits: Limits) -> Errors:
    yield from _environment("env", spec.env, limits)


def _environment(at: str, env: Mapping[str, str], limits: Limits) -> Errors:
    if len(env) > limits.env_entries_max:
        yield field_error(
            at,
            f"{len(env)} variables",
            f"has more than {limits.env_entries_max} variables",
            f"put the values in a file that the program reads{_set_by('env_entries_max')}",
        )
    size = sum(len(name.encode()) + len(value.encode()) + 2 for name, value in env.items())
    if size > limits.env_bytes_max:
        yield field_error(
            at,
            f"{size} bytes",
            f"is larger than {limits.env_bytes_max} bytes",
            f"put large values in a file that the program reads{_set_by('env_bytes_max')}",
        )
    for name, value in env.items():
        yield from _variable(at, name, value)


def _variable(at: str, name: str, value: str) -> Errors:
    if not is_variable(name):
        yield field_error(
            at,
            name,
            "is not a variable's name",
            "use letters, digits and _, not beginning with a digit",
        )
    if "\0" in value:
        yield field_error(
            f"{at}.{name}", "(not shown)", "holds a NUL character", "remove the NUL character"
        )


def _secret_env(spec: TaskSpec, _limits: Limits) -> Errors:
    """Variables that are declared as secrets: each is there, and its values can be masked."""
    if len(spec.secret_env) > SECRET_ENV_MAX:
        yield field_error(
            "secret_env",
            f"{len(spec.secret_env)} variables",
            f"names more than {SECRET_ENV_MAX} variables",
            "put the values in a file that the program reads",
        )
    environments = [spec.env]
    for role in spec.roles:
        environments += [role.env, *([role.resume.env] if role.resume else [])]
    for index, name in enumerate(spec.secret_env[:SECRET_ENV_MAX]):
        values = [env[name] for env in environments if name in env]
        if not values:
            fix = f"set it with env ({name}=VALUE), or remove it here"
            yield field_error(f"secret_env[{index}]", name, "is no variable of the task", fix)
        elif any(0 < len(value.strip()) < SECRET_CHARACTERS_MIN for value in values):
            yield field_error(
                f"secret_env[{index}]",
                name,
                f"has a value of fewer than {SECRET_CHARACTERS_MIN} characters, which cannot be"
                " masked: other text holds it, too",
                "use a longer value, or remove it here",
            )


def _labels(spec: TaskSpec, limits: Limits) -> Errors:
    # A task with as many labels as it may have can be submitted again.
    count = len(spec.labels.keys() - {RETRY_OF})
    if count > limits.labels_max:
        yield field_error(
            "labels",
            f"{count} labels",
            f"a task has at most {limits.labels_max} labels",
            f"remove some{_set_by('labels_max')}",
        )
    for key, value in spec.labels.items():
        longest = max(len(key), len(value))
        if not key.strip() or longest > limits.label_characters_max or "\0" in key + value:
            yield field_error(
                "labels",
                key,
                "is not a label",
                f"use a key and a value of at most {limits.label_characters_max} characters, "
                "without NUL",
            )


def _nodes_wanted(spec: TaskSpec, limits: Limits) -> Errors:
    """Which nodes it may go to: the labels they must have, the taints it does not mind."""
    if len(spec.node_selector) > limits.selector_max:
        yield field_error(
            "node_selector",
            f"{len(spec.node_selector)} labels",
            f"a task selects at most {limits.selector_max} labels",
            f"remove some{_set_by('selector_max')}",
        )
    for key, value in spec.node_selector.items():
        if not is_label_key(key):
            yield field_error("node_selector", key, "is not a label's key", f"use {LABEL_KEY_RULE}")
        elif not is_label_value(value):
            fix = f"use {LABEL_VALUE_RULE}"
            yield field_error(f"node_selector.{key}", value, "is not a label's value", fix)
    if len(spec.tolerations) > limits.tolerations_max:
        yield field_error(
            "tolerations",
            f"{len(spec.tolerations)} taints",
            f"a task tolerates at most {limits.tolerations_max} taints",
            "remove some; a key alone tolerates all of its values" + _set_by("tolerations_max"),
        )
    for index, taint in enumerate(spec.tolerations):
        if not is_taint(taint):
            fix = f"write KEY or KEY=VALUE; a key is {LABEL_KEY_RULE}"
            yield field_error(f"tolerations[{index}]", taint, "is not a taint", fix)


def _working_directory(spec: TaskSpec, _limits: Limits) -> Errors:
    yield from _directory("working_directory", spec.working_directory)


def _directory(at: str, path: str) -> Errors:
    too_long = len(path) > PATH_CHARACTERS_MAX
    if path and (not path.startswith("/") or "\0" in path or too_long):
        yield field_error(
            at,
            path,
            "is not an absolute path",
            f"give a path that begins with / and has at most {PATH_CHARACTERS_MAX} characters",
        )


def _sizes(spec: TaskSpec, _limits: Limits) -> Errors:
    total = sum(role.replicas for role in spec.roles)
    if spec.nodes != total:
        yield field_error(
            "nodes",
            spec.nodes,
            f"is not the sum of the roles' replicas, {total}",
            f"leave it out, or give {total}",
        )


def _requests(spec: TaskSpec, _limits: Limits) -> Errors:
    """Requests above limits, of the task and of each role with what it inherits."""
    yield from _above_limits(spec, "", Role(), {name: name for name in FROM_TASK})
    for index, role in enumerate(spec.roles):
        own = {name for name in FROM_TASK if getattr(role, name) is not None}
        places = {name: f"roles[{index}].{name}" if name in own else name for name in FROM_TASK}
        if own:
            yield from _above_limits(spec, f"roles[{index}].", role, places)


# What a role may leave out of requests and limits.
FROM_TASK = (*REQUESTS, *REQUESTS.values())


def _above_limits(spec: TaskSpec, at: str, role: Role, places: Mapping[str, str]) -> Errors:
    size, limits = size_of(spec, role), limits_of(spec, role)
    for name, request in REQUESTS.items():
        wanted, most = getattr(size, name), getattr(limits, name)
        # What the role inherits whole is an error of the task.
        if most is not None and wanted > most and at in (places[name] + places[request]):
            yield field_error(
                places[request],
                wanted,
                f"is more than the limit {places[name]}, {as_text(most)}",
                f"request at most {as_text(most)}, or raise {places[name]}",
            )


def _bounds(spec: TaskSpec, limits: Limits) -> Errors:
    yield from _outside(spec, "", limits)


def _outside(message: Message, above: str, limits: Limits) -> Errors:
    """Numbers outside of the bounds that ``proto/`` declares or the site chose instead."""
    for name, field in kinds(type(message)).items():
        value = getattr(message, name)
        if field.message and value is not None and not field.mapped:
            if field.repeated:
                for index, each in enumerate(value):
                    yield from _outside(each, f"{above}{name}[{index}].", limits)
            else:
                yield from _outside(value, f"{above}{name}.", limits)
            continue
        low = getattr(limits, bound_setting(name, "min"), field.shown.min)
        high = getattr(limits, bound_setting(name, "max"), field.shown.max)
        if value is None or field.repeated or low is None or high is None:
            continue
        exact = field.shown.above
        if (low < value if exact else low <= value) and value <= high:
            continue
        unit = f" {field.shown.unit}" if field.shown.unit else ""
        lowest, highest = f"{low:.16g}{unit}", f"{high:.16g}{unit}"
        setting = bound_setting(name, "max" if value > high else "min")
        yield field_error(
            above + name,
            value,
            f"is not more than {lowest} and at most {highest}"
            if exact
            else f"is not between {lowest} and {highest}",
            ("leave it out, or " if field.optional else "")
            + "choose a value in that range"
            + (_set_by(setting) if hasattr(limits, setting) else ""),
        )


def _preemption(spec: TaskSpec, _limits: Limits) -> Errors:
    policy = spec.preemption
    if policy.mode is PreemptMode.SIGNAL and policy.signal not in SIGNALS:
        yield field_error(
            "preemption.signal",
            policy.signal,
            "is not a signal that a program can answer",
            "use one of " + ", ".join(sorted(SIGNALS)),
        )
    if policy.mode is not PreemptMode.SIGNAL and policy.signal:
        yield field_error(
            "preemption.signal",
            policy.signal,
            "is only used with the mode signal",
            "leave it out, or choose the mode signal",
        )


def _total(spec: TaskSpec, limits: Limits) -> Errors:
    size = len(spec.to_json())
    if size > limits.spec_bytes_max:
        yield field_error(
            "spec",
            f"{size} bytes",
            f"is larger than {limits.spec_bytes_max} bytes",
            f"put large values in files that the program reads{_set_by('spec_bytes_max')}",
        )


CHECKS: tuple[Callable[[TaskSpec, Limits], Errors], ...] = (
    _names,
    _roles,
    _task_environment,
    _secret_env,
    _labels,
    _nodes_wanted,
    _working_directory,
    _sizes,
    _bounds,
    _requests,
    _preemption,
    check_contract,
    check_completion,
    check_ports,
    check_restart,
    check_start,
    _total,
)
