"""The tree keeps its promises: one skeleton for every service, small modules, doc'd contracts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SERVICES = ("submit", "scheduler", "launcher", "log_collector", "quota", "gateway")
SKELETON = (
    "README.md",
    "__init__.py",
    "__main__.py",
    "main.py",
    "settings.py",
    "handlers.py",
    "store.py",
    "tables.py",
    "migrations/versions",
)
# Modules are cut by idea, not by a line count: this is where one holds more than one idea.
MODULE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
GENERATED = {"libs/contracts/messages.py", "libs/contracts/registry.py"}


def sources() -> list[Path]:
    return [
        path
        for top in ("services", "libs", "tools", "benchmarks", "examples")
        for path in sorted((ROOT / top).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in GENERATED
        and "migrations" not in path.parts
        and "build" not in path.parts
    ]


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_has_the_same_skeleton(service: str) -> None:
    folder = ROOT / "services" / service
    missing = [name for name in SKELETON if not (folder / name).exists()]
    has_domain = (folder / "domain.py").exists() or (folder / "domain").is_dir()
    # The gateway owns a read model and sessions: it projects and decides nothing.
    assert missing == []
    assert has_domain or service == "gateway"


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_says_owns_hears_says_never(service: str) -> None:
    text = (ROOT / "services" / service / "README.md").read_text()
    assert [word for word in ("Owns", "Hears", "Says", "Never") if f"**{word}" not in text] == []


def test_modules_stay_small() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sources()
        if (lines := len(path.read_text().splitlines())) > MODULE_LINES_MAX
    }
    assert long == {}


def test_functions_stay_small() -> None:
    long: list[str] = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                # Without the signature: a command's options are declared there, one a line.
                lines = (node.end_lineno or node.lineno) - node.body[0].lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long.append(f"{path.relative_to(ROOT)}:{node.name} {lines}")
    assert long == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in sources()
        if path.stat().st_size and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_the_tree_speaks_of_itself_alone() -> None:
    """No absolute path of a developer's machine, no registry address."""
    words = ("/wor" + "k/main", "/ro" + "ot/", "pypi" + ".org", "registry.npm" + "js")
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for pattern in ("*.py", "*.md", "*.toml", "*.txt", "*.proto", "Makefile", "*.yaml")
        for path in ROOT.rglob(pattern)
        if not {".venv", ".git", "node_modules"} & set(path.parts)
        for word in words
        if word in path.read_text(errors="ignore")
    ]
    assert found == []
