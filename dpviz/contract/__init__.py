"""The data-parallel contract of a run: what it must put on record so that it can be shown to be data parallel.

`document` makes it from a run and reads it from a file (eight categories, schema.json), `compare` tells in which step
which ranks differ, `check` finds the violations.
"""
