"""The policy lab: a trace replayed through the scheduler's own ``decide`` on a virtual clock."""
