"""Ways to evaluate a stack that are quicker than a loop over its members.

`dense` turns linear layers into batched products, `prefix` makes one wide convolution of all
members' first ones, `passes` computes once what several noisy passes share, `rewrite` makes a graph
cheaper. `plan` picks the fastest way and remembers it.
"""
