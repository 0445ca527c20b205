"""Where sealed output is kept: in the folder, or in a bucket. Settings of the service."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field


class BucketOptions(BaseModel):
    """The bucket of an S3-compatible object storage, and its limits."""

    # s3://BUCKET or s3://BUCKET/PREFIX: sealed output is uploaded there and removed from logs_dir.
    # Empty: it stays in logs_dir.
    bucket_url: str = Field(default="", pattern="^(s3://[^/?#]+(/[^?#]*)?)?$")
    # The address of the object storage; empty: that of the region at AWS.
    bucket_endpoint: str = Field(default="", pattern="^(https?://[^@]+)?$")
    bucket_region: str = "us-east-1"
    # Files with the access key's id and its secret. They are read again every few minutes.
    bucket_key_id_file: Path | None = None
    bucket_secret_file: Path | None = None
    # The limits of one request of a reader, and of one upload.
    bucket_read_seconds: float = Field(default=4.0, gt=0, le=60)
    bucket_write_seconds: float = Field(default=120.0, gt=0, le=3600)
    # A bucket that takes nothing is tried again after retry_seconds, doubling up to this.
    bucket_retry_seconds_max: float = Field(default=300.0, gt=0)
