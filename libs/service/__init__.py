"""The definition of a service and what runs it: settings, consumer, relay, loops, probes, logs."""
