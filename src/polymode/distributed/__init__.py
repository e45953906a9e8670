"""Processes that share the work.

Read `ranks` first: the processes of torchrun, each of which holds some of the modes. `meeting` is
where they write checkpoints and stop together. `ray` runs independent tasks on a Ray cluster.
"""
