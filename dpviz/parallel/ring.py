"""All-reduce from messages between neighbours: k ranks in a ring, a payload in k chunks, each rank always talking to
the next one.

    reduce_scatter    k - 1 steps; a chunk grows by one rank's contribution a step, until its owner has the whole sum
    all_gather        k - 1 steps; the finished chunks go round
    all_reduce        both: every rank sends 2 (k-1)/k of the payload, which is the least that is possible
    naive_all_reduce  everything to rank 0 and back, to compare: rank 0 receives and sends k - 1 payloads

Every function is called by all ranks of the default process group, in the same order, with tensors of one shape and
dtype. A payload of n elements need not divide by k: chunk i is the i-th of `tensor.flatten().tensor_split(k)`, and
rank i owns it. `exchange` is what moves a chunk; hand in a function of your own to watch what travels.
"""

import torch
import torch.distributed as dist


def exchange(outgoing, incoming):
    """Send to the next rank while receiving from the one before. Built in lesson 04.

    The receive is begun first: of two ranks, who share one connection, the one that says too late that it is ready says
    so behind its own message, and the two take turns.
    """
    rank, k = dist.get_rank(), dist.get_world_size()
    messages = [(dist.irecv, incoming, (rank - 1) % k), (dist.isend, outgoing, (rank + 1) % k)]
    for request in dist.batch_isend_irecv([dist.P2POp(*message) for message in messages]):
        request.wait()


def reduce_scatter(tensor, *, exchange=exchange):
    """Return this rank's chunk of the sum over ranks, flat. `tensor` stays as it is. Built in lesson 04."""
    rank, k = dist.get_rank(), dist.get_world_size()
    chunks = list(tensor.flatten().tensor_split(k))
    for step in range(k - 1):
        send, receive = (rank - 1 - step) % k, (rank - 2 - step) % k
        incoming = torch.empty_like(chunks[receive])
        exchange(chunks[send], incoming)
        chunks[receive] = incoming + chunks[receive]  # one rank more in the sum
    return chunks[rank]


def all_gather(chunk, *, into=None, exchange=exchange):
    """Return the ranks' chunks end to end. They are equally long, unless the contiguous `into`, which is then filled,
    says how many elements there are in all. Built in lesson 04.
    """
    rank, k = dist.get_rank(), dist.get_world_size()
    whole = chunk.new_empty(k * chunk.numel()) if into is None else into
    chunks = whole.view(-1).tensor_split(k)
    chunks[rank].copy_(chunk.flatten())
    for step in range(k - 1):
        send, receive = (rank - step) % k, (rank - 1 - step) % k
        exchange(chunks[send], chunks[receive])
    return whole


def all_reduce(tensor, *, exchange=exchange):
    """Replace the contiguous `tensor` by its sum over ranks. Built in lesson 04."""
    all_gather(reduce_scatter(tensor, exchange=exchange), into=tensor, exchange=exchange)


def naive_all_reduce(tensor):
    """The same by way of rank 0: it receives every other rank's payload, adds them up, and sends the sum to each."""
    others = range(1, dist.get_world_size())
    if dist.get_rank() != 0:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    received = [torch.empty_like(tensor) for _ in others]
    for request in [dist.irecv(one, rank) for rank, one in zip(others, received, strict=True)]:
        request.wait()
    for one in received:
        tensor += one
    for request in [dist.isend(tensor, rank) for rank in others]:
        request.wait()
