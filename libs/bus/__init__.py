"""The bus: events at least once, commands by request and reply, telemetry at most once."""
