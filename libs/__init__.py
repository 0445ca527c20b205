"""What every service shares: contracts, bus, store and the shape of a service."""
