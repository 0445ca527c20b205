"""Series of what was measured: blocks of points, their folding into coarser ones, and reading."""
