"""Why a task waits, what would help, when it will start: for people, never for ``decide``."""
