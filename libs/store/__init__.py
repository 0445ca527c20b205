"""A service's tables, its inbox and outbox, and its leadership, in one transaction."""
