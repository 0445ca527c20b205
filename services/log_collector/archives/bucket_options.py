"""Where sealed output is kept: in the folder, or in a bucket. Settings of the service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field


def _bucket(text: str) -> str:
    if text and not re.fullmatch(r"s3://[^/?#]+(/[^?#]*)?", text):
        raise ValueError(f"{text!r} is no bucket; write s3://BUCKET or s3://BUCKET/PREFIX")
    return text


def _endpoint(text: str) -> str:
    if text and not re.fullmatch(r"https?://[^@]+", text):
        # It may hold a password.
        raise ValueError("it is no address of an object storage; write https://HOST or http://HOST")
    return text


class BucketOptions(BaseModel):
    """The bucket of an S3-compatible object storage, and its limits."""

    # s3://BUCKET or s3://BUCKET/PREFIX: sealed output is uploaded there and removed from logs_dir.
    # Empty: it stays in logs_dir.
    bucket_url: Annotated[str, AfterValidator(_bucket)] = ""
    # The address of the object storage; empty: that of the region at AWS.
    bucket_endpoint: Annotated[str, AfterValidator(_endpoint)] = ""
    bucket_region: str = "us-east-1"
    # Files with the access key's id and its secret. They are read again every few minutes.
    bucket_key_id_file: Path | None = None
    bucket_secret_file: Path | None = None
    # The limits of one request of a reader, and of one upload.
    bucket_read_seconds: float = Field(default=4.0, gt=0, le=60)
    bucket_write_seconds: float = Field(default=120.0, gt=0, le=3600)
    # A bucket that takes nothing is tried again after retry_seconds, doubling up to this.
    bucket_retry_seconds_max: float = Field(default=300.0, gt=0)
