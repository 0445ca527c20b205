"""The pod policy of a site, and the validation and assembly of a task's pods under it."""
