"""What the monitor decides: what notifies, where to, and when again; series and activity. Pure."""
