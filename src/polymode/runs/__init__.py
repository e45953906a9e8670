"""A run on disk: what is asked for, its cells, the processes that run them, and its folder."""
