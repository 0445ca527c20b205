"""``make demo-kubernetes``: the README's demo in pods, on real nodes."""
