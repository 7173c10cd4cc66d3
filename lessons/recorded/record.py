"""Make the runs in this folder again: `python lessons/recorded/record.py [NAME ...]`. See README.md."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOSTS = [sys.executable, str(HERE.parents[1] / "cluster" / "two_hosts.py"), "--gbps", "1"]
TORCHRUN = "torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint host0:29500"
ZERO = "zero --layers 4 --width 512 --micro-batch 8 --steps 3"
RUNS = {
    "all_reduce": "all_reduce --sizes 65536,1048576,16777216",
    **{f"zero_{stage}": f"{ZERO} --stage {stage}" for stage in range(4)},
}


def main() -> int:
    for name in sys.argv[1:] or RUNS:
        line = f"{TORCHRUN} -m dpviz run {RUNS[name]} --world-size 4 --out {HERE / name}.json"
        print(line)
        done = subprocess.run([*HOSTS, *line.split()], stdout=subprocess.DEVNULL, timeout=300, check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
