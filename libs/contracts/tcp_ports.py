"""TCP ports on which several programs agree."""

GATEWAY_PORT = 8642
