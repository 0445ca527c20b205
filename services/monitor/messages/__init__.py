"""Messages about tasks: which there are, and their delivery by webhook and mail."""
