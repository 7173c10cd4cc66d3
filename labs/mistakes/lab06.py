"""Wrong answers that students give in lab 6, and what the checks say to them."""

MISTAKES = [
    {
        "exercise": 1,
        "name": "rounds down, and loses the remainder",
        "code": """
def my_shard(flat, rank, k):
    length = len(flat) // k
    return flat[rank * length : (rank + 1) * length]
""",
        "says": "the lengths of the shards of 10 numbers on 4 ranks: measured .2., expected .3.",
    },
    {
        "exercise": 2,
        "name": "averages all gradients everywhere before it takes its part",
        "code": """
def stage1_step(parameters, shard, optimizer, r):
    k, rank = dist.get_world_size(), dist.get_rank()
    whole = r.gather(r.reduce_scatter(padded([p.grad for p in parameters], k))) / k
    shard.grad = part(whole, rank, k)
    optimizer.step()
    whole = r.gather(shard.detach())
    sizes = [p.numel() for p in parameters]
    for p, values in zip(parameters, whole[: sum(sizes)].split(sizes), strict=True):
        p.data.copy_(values.view_as(p))
""",
        "says": "sent by rank 0 of 2 in a step: measured .* bytes, and at most .* bytes is allowed",
    },
    {
        "exercise": 2,
        "name": "shards nothing: every rank updates everything by itself",
        "code": """
def stage1_step(parameters, shard, optimizer, r):
    k = dist.get_world_size()
    everything = torch.optim.AdamW(parameters, lr=0.01)
    whole = r.gather(r.reduce_scatter(padded([p.grad for p in parameters], k))) / k
    sizes = [p.numel() for p in parameters]
    for p, values in zip(parameters, whole[: sum(sizes)].split(sizes), strict=True):
        p.grad = values.view_as(p)
    everything.step()
""",
        "says": "a parameter on rank 0 of 2: measured",
    },
    {
        "exercise": 3,
        "name": "waits until backward is over, and holds all gradients",
        "code": """
def reduce_when_ready(parameters, keep, r):
    first = parameters[0]

    def at_the_end():
        k = dist.get_world_size()
        keep(r.reduce_scatter(padded([p.grad for p in parameters], k)) / k)
        for p in parameters:
            p.grad = None

    def came(_):
        torch.autograd.Variable._execution_engine.queue_callback(at_the_end)

    first.register_post_accumulate_grad_hook(came)
""",
        "says": "whole gradients held at once: measured .* bytes, and at most",
    },
    {
        "exercise": 3,
        "name": "sums over ranks, and forgets to divide",
        "code": """
def reduce_when_ready(parameters, keep, r):
    waiting = [0]

    def came(_):
        waiting[0] += 1
        if waiting[0] % len(parameters) == 0:
            keep(r.reduce_scatter(padded([p.grad for p in parameters], dist.get_world_size())))
            for p in parameters:
                p.grad = None

    for p in parameters:
        p.register_post_accumulate_grad_hook(came)
""",
        "says": "a gradient in a shard of rank 0: measured",
    },
    {
        "exercise": 4,
        "name": "keeps the layer after its use",
        "code": """
class Loan:
    def __init__(self, whole, shard, r):
        self.whole, self.shard, self.r = whole, shard, r

    def __enter__(self):
        self.whole.untyped_storage().resize_(self.whole.numel() * self.whole.element_size())
        self.whole.copy_(self.r.gather(self.shard))

    def __exit__(self, *error):
        pass
""",
        "says": "bytes held in and after each loan: measured",
    },
    {
        "exercise": 5,
        "name": "clips by the shard's own norm (case 10)",
        "code": """
def clip_shards(shard, max_norm):
    norm = shard.norm()
    shard *= (max_norm / norm).clamp(max=1.0)
    return norm.item()
""",
        "says": "the norm on each rank: measured 3, expected 5",
    },
    {
        "exercise": 7,
        "name": "averages only the last micro-batch",
        "code": """
def accumulate(parameters, backward, K, r, *, sharded):
    k = dist.get_world_size()
    for i in range(K):
        for p in parameters:
            p.grad = None
        backward(i)
    shard = r.reduce_scatter(padded([p.grad for p in parameters], k)) / k
    for p in parameters:
        p.grad = None
    return shard
""",
        "says": "a gradient on rank 0, sharded=True: measured",
    },
]
