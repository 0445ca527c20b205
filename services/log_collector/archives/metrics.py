"""The metrics of kept output; the alerts on them are in the chart."""

from __future__ import annotations

from libs.service.metrics import Metrics

declare = Metrics("log_collector")
DAMAGED = declare.counter(
    "shiftwork_log_damaged_bytes_total",
    "Bytes of kept output that a reader or the compression found damaged or missing",
)
SEALED = declare.counter(
    "shiftwork_log_sealed_bytes_total", "Bytes of output that were compressed, as written"
)
SEAL_FAILURES = declare.counter(
    "shiftwork_log_seal_failures_total", "Outputs that could not be compressed; tried again later"
)
UPLOADED = declare.counter(
    "shiftwork_log_uploaded_bytes_total", "Bytes of compressed output that the bucket confirmed"
)
UPLOAD_FAILING = declare.gauge(
    "shiftwork_log_upload_failing_seconds",
    "For how long the bucket has taken nothing although something waits; 0: it does",
)
