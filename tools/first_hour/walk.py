"""Which documents are followed, what is typed otherwise than it is written there, and the walk."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.first_hour.documents import DocumentError, Step, printed_as_shown, steps
from tools.first_hour.terminal import StepError, Terminal

# Only what hangs takes so long, also on a busy machine.
STEP_SECONDS = 900.0
AS_ROOT = " --tasks-as-root" if os.geteuid() == 0 else ""
# What `up` prints once it answers.
READY = "Shiftwork is ready"


@dataclass(frozen=True, slots=True)
class Substitution:
    """A line that is typed in another way, and why."""

    pattern: str
    typed: str
    why: str


# In this order. `$HOME` is a fresh folder, and PORT a free port.
SUBSTITUTIONS = (
    Substitution(
        r"^(shiftwork (?:up|down|doctor))\b",
        r'\1 --data "$HOME/data"',
        "another platform may be up on this machine",
    ),
    Substitution(
        r"^(shiftwork up\b.*?)$",
        rf'rm -f "$HOME/up.log"\nsetsid \1 --port "$PORT"{AS_ROOT} >"$HOME/up.log" 2>&1 &'
        rf'\nuntil grep -qs "{READY}" "$HOME/up.log" || ! kill -0 $!; do sleep 0.2; done'
        rf'\ngrep "{READY}" "$HOME/up.log" || {{ cat "$HOME/up.log"; false; }}',
        "it stays in the foreground: a terminal of its own; root must choose the user of tasks",
    ),
    Substitution(
        r"^pip install '\./libs/sdk\[(?!cli\]).*$",
        "python -c 'import shiftwork'",
        "gigabytes: the frameworks come from .venv-frameworks, whose versions are locked",
    ),
    Substitution(r" /tmp/", ' "$HOME"/', "what an earlier hour left there is not resumed"),
    Substitution(r"^make test$", "make help", "CI runs it as a step of its own"),
    Substitution(
        r"^(shiftwork submit --name resnet .*)torchrun train\.py$",
        r"\1python long.py",
        "no PyTorch in this environment; the page steers it until its end",
    ),
    Substitution(r"\bsynthetic:2000\b", "synthetic:200", "so that it takes seconds"),
    Substitution(
        r"^(shiftwork (?:events|logs)\b.* -f.*)$",
        r"timeout 3 \1 || test $? = 124",
        "it follows for ever: Ctrl-C after 3 s",
    ),
    Substitution(
        r"^(shiftwork wait \S+) --timeout 2h$",
        r"! \1 --timeout 1s",
        "nobody waits for two hours: the task goes on",
    ),
)

# What the user has: the script that the pages call train.py, until a page shows it with the SDK,
# and one that runs until it is asked to leave.
OWN = {
    "train.py": "import time\nfor step in range(20):\n    time.sleep(0.05)\n",
    "long.py": """\
import os, time
import shiftwork

step = getattr(shiftwork.resume_from(), "step", 0)
while True:
    step += 1
    time.sleep(0.05)
    if shiftwork.should_preempt():
        path = os.path.abspath(f"long-{step}")
        open(path, "w").close()
        shiftwork.checkpoint_saved(step, path)
        shiftwork.exit_preempted()
""",
}
# The new environment takes the bytecode of the one of `make test-frameworks`: compiling the same
# files once more takes half a minute. Python ignores what is of other files.
COMPILED = Path(__file__).parents[2] / ".venv-frameworks"
TAKE_COMPILED = (
    f"if test -d '{COMPILED}/lib'; then (cd '{COMPILED}' && find lib -name '*.pyc' -print0 |"
    " tar --null --files-from - --create --file -) | tar --extract -C .venv-frameworks; fi\n"
)
# What a page takes for granted; nothing is done twice.
PREPARED = {
    "docs/guide.md": "make setup && source .venv/bin/activate\n",
    "docs/frameworks.md": "make .venv-frameworks/.set-up\n"
    + TAKE_COMPILED
    + "source .venv/bin/activate\n"
    # Two nodes: a task of higher priority must push another one out.
    "shiftwork down --now || true\n"
    "shiftwork up --nodes 2 --slots 2\n"
    "source .venv-frameworks/bin/activate\n",
}
COMMENT = re.compile(r"\s+#\s.*$")


def typed(text: str) -> str:
    """What is typed for a block: its lines, and for those of the table what is typed instead."""
    return "\n".join(_substituted(line) for line in text.splitlines()) + "\n"


def _substituted(line: str) -> str:
    bare = COMMENT.sub("", line).rstrip()
    found = bare
    for one in SUBSTITUTIONS:
        found = re.sub(one.pattern, one.typed, found)
    return line if found == bare else found


class WalkError(Exception):
    """A page that is wrong: the place, its text, and what happened."""


def walk(
    root: Path, pages: Sequence[str], terminal: Terminal, report: Callable[[str], None]
) -> None:
    """Follow the pages one after another. Raises WalkError at the first thing that is not so."""
    for name, text in OWN.items():
        (root / name).write_text(text)
    for page in pages:
        before = [Step(f"{page}:0", PREPARED[page])] if page in PREPARED else []
        try:
            found = before + steps(page, (root / page).read_text())
        except DocumentError as error:
            raise WalkError(str(error)) from None
        for step in found:
            began = time.monotonic()
            _take(root, step, terminal)
            first = (step.file or step.text).strip().splitlines()[0]
            how = (
                f"skipped, {step.skipped}" if step.skipped else f"{time.monotonic() - began:.1f} s"
            )
            report(f"{step.where:<24} {COMMENT.sub('', first)[:70]:<70}  {how}")


def _take(root: Path, step: Step, terminal: Terminal) -> None:
    if step.skipped:
        return
    if step.file:
        (root / step.file).write_text(step.text)
        return
    text = typed(step.text)
    try:
        printed = terminal.run(text, seconds=STEP_SECONDS)
    except StepError as failed:
        ended = "did not end in time" if failed.status is None else f"failed ({failed.status})"
        raise WalkError(f"{step.where}: {ended}\n{_shown(text, failed.printed)}") from None
    if step.expected is not None and not printed_as_shown(step.expected, printed):
        raise WalkError(
            f"{step.where}: prints something else than the page shows\n"
            f"--- the page shows\n{step.expected}{_shown(text, printed)}"
        )


def _shown(text: str, printed: str) -> str:
    return f"--- typed\n{text}--- printed\n{printed}"
