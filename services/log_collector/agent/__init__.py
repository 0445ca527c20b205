"""The per-node program that reads containers' log files for log-collector."""
