"""Where code runs: processes, rendezvous, results, and whose fault it was.

launch.py    what a user calls: here, on the warm pool, or under torchrun
jobs.py      the one thread that owns the pool; a Job can be waited for and stopped
pool.py      the launching side: processes, and what is sent to them
ongoing.py   the state of one launch: records, prints and results as they come
blame.py     from what the ranks said to a RankError
sources.py   where ranks come from: the rank server, or new interpreters where there is no safe fork
server.py    the rank server: forks ranks, and ends them when its launcher is gone
here.py      ranks that this process is itself: world size 1, and under torchrun
rank.py      what a rank process does
travel.py    functions there, tracebacks back
"""
