"""The examples of docs/client.md, each as a program of its own against a whole platform."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.kit.platform import Platform, running_platform

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(120)]
PAGE = Path(__file__).parents[2] / "docs/client.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Later examples go on where the first one has ended.
GIVEN = "import shiftwork\nclient = shiftwork.Client()\n"


async def started(platform: Platform, program: str) -> asyncio.subprocess.Process:
    token = platform.client.headers["authorization"].removeprefix("Bearer ")
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-u", "-c", program),
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(platform.folder),
            "SHIFTWORK_URL": platform.dev.url,
            "SHIFTWORK_TOKEN": token,
        },
        cwd=platform.folder,
        stdout=asyncio.subprocess.PIPE,
    )


async def printed(platform: Platform, program: str) -> str:
    """What a program prints that ends."""
    process = await started(platform, program)
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def test_the_examples_of_the_page_work() -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    assert [language for language, _ in blocks] == ["python", "text", "python", "python"]
    hello, shown, follow, listing = (text for _, text in blocks)
    async with running_platform() as platform:
        assert await printed(platform, hello) == shown
        assert await printed(platform, listing) == "hello succeeded\n"
        (node,) = (await platform.client.get("/v1/nodes")).json()["items"]
        process = await started(platform, GIVEN + follow)
        assert process.stdout is not None
        try:
            line = b""
            for number in range(100):
                # Until the program follows, too.
                path = f"/v1/nodes/{node['id']}/labels"
                body = {"set": {"rack": f"r{number}"}}
                (await platform.client.put(path, json=body)).raise_for_status()
                try:
                    line = await asyncio.wait_for(process.stdout.readline(), 1.0)
                    break
                except TimeoutError:
                    continue
        finally:
            process.kill()
            await process.wait()
        assert line.startswith(b"node.")
        assert b"'rack': 'r" in line
