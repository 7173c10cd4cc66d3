"""Classroom labs: exercises whose checks run real ranks. `source` reads a lab as its author wrote it, `release` makes
what a student gets, `prove` shows that its checks check, `grade` marks a folder of submissions, `expect` is what checks
say.
"""
