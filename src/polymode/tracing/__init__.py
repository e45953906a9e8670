"""What a network is made of.

`modules` names parameters and buffers and sets modes, `network` is what all stacks of one
architecture share. `graph` is the one tracer, and `operations` the one table of what operations do
to entries, channels and scales. `noise` and `attention` hold what is random and what torch computes
in one piece. `code` tells networks with other forward methods apart.
"""
