"""NATS and PostgreSQL from wheels, run as child processes, and the secrets they are run with."""
