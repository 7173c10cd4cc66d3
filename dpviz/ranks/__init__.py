"""Where code runs: processes, rendezvous, results, and whose fault it was.

launch.py    what a user calls: here, on the warm pool, or under torchrun
jobs.py      the one thread that owns the pool; a Job can be waited for and stopped
pool.py      the launching side: dispatch, collect records, prints and results
blame.py     from what the ranks said to a RankError
server.py    the rank server: forks ranks, and ends them when its launcher is gone
spawn.py     stands in for the server where there is no safe fork
rank.py      what a rank process does
travel.py    functions there, tracebacks back
"""
