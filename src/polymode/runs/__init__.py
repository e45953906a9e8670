"""A run on disk: what is requested, its cells, the processes that run them, and its folder.

Read first `part` (a request, the parts of a study), `plan` (the cells) and `running` (runs those
that are missing). `cell` fits and scores one of them, `pool` does so in processes of this machine
and `fleet` on a Ray cluster. `folder` reads and writes the files, with `archive` for predictions
and `lock` for its one writer; `estimate` and `watch` keep the time; `defaults`, `settings` and
`environment` hold options, their texts, and versions.
"""
