"""Processes that share the work.

`ranks` first: the processes of torchrun, each of which holds some of the modes. `meeting` says when
they stop together, `failures` how one learns why another failed. `ray` runs independent pieces of
work on a Ray cluster.
"""
