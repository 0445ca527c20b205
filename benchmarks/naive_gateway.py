"""What anybody writes first: FastAPI, one row and one commit for each POST. The floor of
``durable_gateway``; started by it.

    python -m benchmarks.naive_gateway DATABASE_URL   (the password comes in PGPASSWORD)
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import uvicorn
from fastapi import FastAPI, Request, Response

TABLE = "CREATE TABLE IF NOT EXISTS naive (id bigserial PRIMARY KEY, spec jsonb NOT NULL)"
INSERT = "INSERT INTO naive (spec) VALUES ($1) RETURNING id"
ONE = "SELECT spec::text FROM naive WHERE id = $1"
CONNECTIONS = 16


def app(database_url: str) -> FastAPI:
    """The application."""

    @asynccontextmanager
    async def connected(made: FastAPI) -> AsyncGenerator[None]:
        # Its signature is not typed.
        create_pool: Any = vars(asyncpg)["create_pool"]
        async with create_pool(database_url, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
            await pool.execute(TABLE)
            made.state.pool = pool
            yield

    made = FastAPI(lifespan=connected)

    @made.post("/v1/tasks", status_code=201)
    async def submit(request: Request) -> dict[str, int]:
        spec: dict[str, Any] = await request.json()
        return {"id": await made.state.pool.fetchval(INSERT, json.dumps(spec))}

    @made.get("/v1/tasks/{number}")
    async def read(number: int) -> Response:
        found = await made.state.pool.fetchval(ONE, number)
        return Response(found, media_type="application/json")

    _ = submit, read
    return made


if __name__ == "__main__":
    uvicorn.run(app(sys.argv[1]), host="127.0.0.1", port=0, access_log=False, log_level="info")
