"""Programs for people who work on the project; nothing of the platform imports them."""
