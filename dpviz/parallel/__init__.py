"""Data parallelism by hand, one file a technique; each imports torch and nothing of dpviz, so that it can be copied
out and used.
"""
