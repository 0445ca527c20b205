"""The monitor's decisions: what notifies, where to, and when again. Pure."""
