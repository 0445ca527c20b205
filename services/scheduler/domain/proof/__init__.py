"""Every plan is checked before it is committed, by code that shares nothing with what made it."""
