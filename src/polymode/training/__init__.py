"""Training: data in batches, options, the optimiser, the loop and what it leaves.

`loop` first. `data` yields batches, `options` and `optimiser` say how to train, `events` are what
observers hear, `history` holds the loss curves. `checkpoint` lets a run resume.
"""
