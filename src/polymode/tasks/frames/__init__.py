"""Tables with columns of any kind as tasks.

Read `columns` first (what is understood as a table), then `encoder` (from columns to inputs),
`sets` (DataFrames and names of classes where a `Task` takes arrays) and `from_frame` (a task from
one table).
"""
