"""Closed forms, each with its source in the docstring.

No torch: a formula is answered at once, and can be read alone.
"""
