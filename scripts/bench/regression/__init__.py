"""The regression guard: counted instructions and measured ratios of the hot paths, against a committed baseline."""
