"""Documentation that can be checked is checked."""

from __future__ import annotations

import re
from pathlib import Path

from libs.contracts.task_contracts import CONTRACTS

ROOT = Path(__file__).resolve().parent.parent


def test_every_dependency_has_its_reason() -> None:
    documented = set(
        re.findall(r"[a-z0-9][\w.-]*", (ROOT / "docs/dependencies.md").read_text().lower())
    )
    wanted = {
        re.split(r"[\[<>=~!]", line)[0].strip().lower()
        for name in ("platform.in", "examples.in", "frameworks.in", "dev.in", "bootstrap.in")
        for line in (ROOT / "requirements" / name).read_text().splitlines()
        if line and not line.startswith(("#", "-r"))
    }
    assert wanted - documented == set()


def test_locks_hold_hashes_and_no_addresses() -> None:
    for lock in (ROOT / "requirements").glob("*.txt"):
        text = lock.read_text()
        assert "--hash=sha256:" in text
        assert "://" not in text, lock.name


def test_relative_links_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert broken == []


def blocks_of_rows(page: Path) -> list[list[str]]:
    """The lines of each table, outside of code."""
    blocks: list[list[str]] = [[]]
    in_code = False
    for line in page.read_text().splitlines():
        in_code ^= line.lstrip().startswith("```")
        if line.startswith("|") and not in_code:
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if block]


def test_tables_are_whole() -> None:
    """A blank line ends a table: the rows behind it would be shown as text."""
    broken = [
        f"{page.relative_to(ROOT)}: {block[0]}"
        for page in [
            *ROOT.glob("*.md"),
            *(ROOT / "docs").rglob("*.md"),
            ROOT / "libs/sdk/README.md",
        ]
        for block in blocks_of_rows(page)
        if len(block) < 2
        or not re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", block[1].strip())
        or len({len(re.findall(r"(?<!\\)\|", row)) for row in block}) > 1
    ]
    assert broken == []


def test_the_page_of_contracts_has_every_variable_as_it_is_declared() -> None:
    page = (ROOT / "docs/contracts.md").read_text()
    for contract in CONTRACTS.values():
        _, _, section = page.partition(f"\n## {contract.word}\n")
        rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", section.partition("\n## ")[0], re.MULTILINE)
        assert dict(rows) == contract.variables, contract.word
        assert f"| `{contract.word}` | {contract.serves} | " in page
        assert contract.pod_port is None or f"in pods {contract.pod_port} |" in page
