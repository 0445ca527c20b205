"""The scheduler's pure core: values in, plan out; no clock, no I/O, no randomness."""
