"""Which GPUs of which nodes a gang gets: what is free, what fits, and the network it lies in."""
