"""quota: owns quotas and the usage ledger. See README.md."""
