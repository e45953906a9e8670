"""A stack of networks: M members with one architecture, evaluated together.

`stack` first. `gathering` joins the members' tensors, `views` are what shares a stack's memory,
`statistics` are those of normalisation layers, and `execution` evaluates the members in one of
several ways. `fast/` has the ways that are quick but harder to read, and picks one (`fast/plan`).
"""
