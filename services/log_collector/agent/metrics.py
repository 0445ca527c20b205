"""The agent's own metrics. Counted in ``spool.py``."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

READ_BYTES = Counter("shiftwork_log_agent_read_bytes_total", "Bytes of output given out")
LOST_BYTES = Counter(
    "shiftwork_log_agent_lost_bytes_total",
    "Bytes of log files dropped though log-collector had not read them",
)
GAPS = Counter(
    "shiftwork_log_agent_gaps_total", "Places where output was gone before the agent saw it"
)
BAD_LINES = Counter(
    "shiftwork_log_agent_bad_lines_total", "Lines of log files that are no entries, left out"
)
SPOOL_BYTES = Gauge(
    "shiftwork_log_agent_spool_bytes", "Bytes on disk that only the spool still names"
)
OUTPUTS = Gauge("shiftwork_log_agent_outputs", "Outputs in the spool")
