#!/usr/bin/env bash
# Two hosts by hand. Type the same line on both, within ten minutes of each other; host0 is one of the two:
#
#     bash cluster/plain.sh host0 eth0
#
# To rehearse it on one machine: python cluster/two_hosts.py bash cluster/plain.sh host0 eth0
set -euo pipefail

meet_at=${1:?the name of the host where the agents meet, the same on both}
card=${2:?the name of this host\'s network card: ip -br addr lists them}

# gloo and nccl would otherwise guess, and some guesses are the loopback, which leads to no other host
export GLOO_SOCKET_IFNAME=$card NCCL_SOCKET_IFNAME=$card
# several threads a rank would fight for the cores that the ranks share
export OMP_NUM_THREADS=1

# --nproc-per-node is the ranks of one host, --world-size all of them: 2 x 2
# c10d: the agents meet at a store on host0, which tells each rank its number, so no host needs to be told which one it is
# port 29500 of host0 must be open to the other host. The agent listens on all interfaces: use a private network
torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint "$meet_at:29500" \
    -m dpviz run zero --world-size 4 --stage 3 --out zero.json # the file is written on the host of rank 0
