"""The names of the launcher's runtimes, and the labels by which their nodes report what they lack.

The launcher reports them; submit reads them to warn of what has no effect.
"""

from __future__ import annotations

# Ranks are processes of one machine.
PROCESS = "process"
# Ranks are pods.
KUBERNETES = "kubernetes"

# A node has this label if it cannot enforce tasks' CPU and memory limits, or the end of a task that
# hides.
LIMITS_LABEL = "shiftwork.limits"
LIMITS_NOT_ENFORCED = "not-enforced"
