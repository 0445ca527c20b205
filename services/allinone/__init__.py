"""Everything on one machine: the embedded servers, all services, and what keeps them running."""
