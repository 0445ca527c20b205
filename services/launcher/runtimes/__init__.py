"""Where ranks really run: the port, and its adapters."""
