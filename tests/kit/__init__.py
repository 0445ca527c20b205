"""What tests stand on: servers, worlds, and judges of recorded histories."""
