"""The runtimes that run ranks: the port and its adapters."""
