"""monitor: tells people and programs what happens to tasks. See README.md."""
