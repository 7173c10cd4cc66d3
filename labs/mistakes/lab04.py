"""Wrong answers that students give in lab 4, and what the checks say to them."""

OVERLAPPED = """
def overlapped(model, cap_bytes, all_reduce):
    parameters = [p for p in model.parameters() if p.requires_grad][::-1]
    buckets = fill_buckets(parameters, cap_bytes)
    bucket_of = {p: i for i, bucket in enumerate(buckets) for p in bucket}
    missing = [len(bucket) for bucket in buckets]
    sent = {}

    def send(i):
        flat = torch.cat([q.grad.flatten() for q in buckets[i]])
        sent[i] = (flat, all_reduce(flat))

    def came(p):
        missing[bucket_of[p]] -= 1
        while len(sent) < len(buckets) and missing[len(sent)] == 0:
            send(len(sent))

    def finish():
        for i, (flat, handle) in sent.items():
            handle.wait()
            flat /= dist.get_world_size()
            for p, part in zip(buckets[i], flat.split([p.numel() for p in buckets[i]])):
                p.grad.copy_(part.view_as(p))
        missing[:] = [len(bucket) for bucket in buckets]
        sent.clear()

    for p in parameters:
        p.register_post_accumulate_grad_hook(came)
    return finish
"""


def but(old: str, new: str) -> str:
    """Return the answer to exercise 5 with one thing wrong."""
    assert OVERLAPPED.count(old) == 1
    return OVERLAPPED.replace(old, new)


MISTAKES = [
    {
        "exercise": 1,
        "name": "splits by count instead of bytes",
        "code": """
def buckets_of(sizes, cap):
    each = max(1, cap // sizes[0])
    order = list(reversed(range(len(sizes))))
    return [order[i : i + each] for i in range(0, len(order), each)]
""",
        "says": "the buckets of 100, 400, 100, 100, 300 bytes, cap 400: measured",
    },
    {
        "exercise": 1,
        "name": "fills from the first layer",
        "code": """
def buckets_of(sizes, cap):
    buckets, held = [[]], 0
    for i, size in enumerate(sizes):
        if held >= cap:
            buckets, held = buckets + [[]], 0
        buckets[-1].append(i)
        held += size
    return buckets
""",
        "says": "the buckets of 8 layers of 1 MiB, cap 3 MiB: measured ..0, 1, 2., ",
    },
    {
        "exercise": 1,
        "name": "never exceeds the cap",
        "code": """
def buckets_of(sizes, cap):
    buckets, held = [[]], 0
    for i in reversed(range(len(sizes))):
        if buckets[-1] and held + sizes[i] > cap:
            buckets, held = buckets + [[]], 0
        buckets[-1].append(i)
        held += sizes[i]
    return buckets
""",
        "says": "cap 400: measured ..4, 3., .2., .1., .0.., expected ..4, 3., .2, 1., .0..",
    },
    {
        "exercise": 2,
        "name": "averages a copy",
        "code": """
def average_bucket(parameters):
    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
""",
        "says": "gradient 0, the mean over 2 ranks: measured .*, expected",
    },
    {
        "exercise": 2,
        "name": "one all-reduce for each gradient",
        "code": """
def average_bucket(parameters):
    for p in parameters:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
""",
        "says": "collectives of rank 0 and their bytes: measured .*96.*, expected ...all_reduce., 184",
    },
    {
        "exercise": 3,
        "name": "begins each bucket as soon as it is full",
        "code": """
def begun(full):
    return [[bucket] for bucket in full]
""",
        "says": "begun as 1, 0, 2 become full: measured ..1., .0., .2.., expected",
    },
    {
        "exercise": 4,
        "name": "forgets to count anew for the next backward",
        "code": """
def watch(buckets, start):
    missing = [len(bucket) for bucket in buckets]

    def hook_of(i):
        def came(_):
            missing[i] -= 1
            if missing[i] == 0:
                start(i)

        return came

    for i, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(hook_of(i))
""",
        "says": r"what was started in the second backward: measured \[\], expected",
    },
    {
        "exercise": 4,
        "name": "all hooks know the last bucket only",
        "code": """
def watch(buckets, start):
    missing = [len(bucket) for bucket in buckets]
    for i, bucket in enumerate(buckets):
        def came(_):
            missing[i] -= 1
            if missing[i] == 0:
                missing[i] = len(buckets[i])
                start(i)

        for p in bucket:
            p.register_post_accumulate_grad_hook(came)
""",
        "says": "what was started in the first backward, by then there: measured",
    },
    {
        "exercise": 5,
        "name": "waits inside the hook, so that nothing overlaps",
        "code": but(
            "        sent[i] = (flat, all_reduce(flat))",
            "        sent[i] = (flat, all_reduce(flat))\n        sent[i][1].wait()",
        ),
        "says": "waits before backward had ended: measured 3, expected 0",
    },
    {
        "exercise": 5,
        "name": "sends everything after backward",
        "code": but(
            "        while len(sent) < len(buckets) and missing[len(sent)] == 0:\n            send(len(sent))",
            "        pass",
        ).replace(
            "    def finish():\n", "    def finish():\n        for i in range(len(buckets)):\n            send(i)\n"
        ),
        "says": "all-reduces begun before the last gradient was there: measured 0, and at least 2 is needed",
    },
    {
        "exercise": 5,
        "name": "begins buckets as they become full, in another order on each rank",
        "code": but(
            "        while len(sent) < len(buckets) and missing[len(sent)] == 0:\n            send(len(sent))",
            "        if missing[bucket_of[p]] == 0:\n            send(bucket_of[p])",
        ),
        "says": "a gradient, another order of backward on rank 1: measured .*, expected",
    },
    {
        "exercise": 5,
        "name": "forgets to divide by k",
        "code": but("            flat /= dist.get_world_size()\n", ""),
        "says": "a gradient on rank 0 of 2: measured .*, expected",
    },
    {
        "exercise": 5,
        "name": "gives frozen parameters a place in a bucket",
        "code": but("[p for p in model.parameters() if p.requires_grad][::-1]", "[*model.parameters()][::-1]"),
        "says": "RankError: .* raised RuntimeError: cannot register a hook on a tensor that doesn't require gradient",
    },
    {
        "exercise": 6,
        "name": "averages only the last micro-batch",
        "code": """
def window(model, losses, cap_bytes, all_reduce):
    parameters = [p for p in model.parameters()][::-1]
    for loss in losses[:-1]:
        loss().backward()
    mine = [None if p.grad is None else p.grad.clone() for p in parameters]
    model.zero_grad()
    buckets, sent = fill_buckets(parameters, cap_bytes), []
    there = set()

    def came(p):
        there.add(p)
        while len(sent) < len(buckets) and there.issuperset(buckets[len(sent)]):
            flat = torch.cat([q.grad.flatten() for q in buckets[len(sent)]])
            sent.append((flat, all_reduce(flat)))

    for p in parameters:
        p.register_post_accumulate_grad_hook(came)
    losses[-1]().backward()
    for bucket, (flat, handle) in zip(buckets, sent):
        handle.wait()
        for p, part in zip(bucket, (flat / dist.get_world_size()).split([p.numel() for p in bucket])):
            p.grad.copy_(part.view_as(p))
    for p, gradient in zip(parameters, mine):
        p.grad += gradient
""",
        "says": "a gradient on rank 0, rank 1 without ..: measured .*, expected",
    },
    {
        "exercise": 6,
        "name": "sends every micro-batch",
        "code": """
def window(model, losses, cap_bytes, all_reduce):
    parameters = [*model.parameters()][::-1]
    for loss in losses:
        loss().backward()
        for bucket in fill_buckets(parameters, cap_bytes):
            flat = torch.cat([p.grad.flatten() for p in bucket])
            all_reduce(flat).wait()
            for p, part in zip(bucket, (flat / dist.get_world_size()).split([p.numel() for p in bucket])):
                p.grad.copy_(part.view_as(p))
""",
        "says": "KiB of the all-reduces of an update: measured .24, 24, 16, 24, .*, expected .24, 24, 16.",
    },
    {
        "exercise": 6,
        "name": "waits for ever for the gradient of a parameter that is not used",
        "code": """
def window(model, losses, cap_bytes, all_reduce):
    parameters = [*model.parameters()][::-1]
    buckets, sent, there = fill_buckets(parameters, cap_bytes), [], set()

    def came(p):
        there.add(p)
        while len(sent) < len(buckets) and there.issuperset(buckets[len(sent)]):
            flat = torch.cat([q.grad.flatten() for q in buckets[len(sent)]])
            sent.append((flat, all_reduce(flat)))

    for loss in losses[:-1]:
        loss().backward()
    for p in parameters:
        p.register_post_accumulate_grad_hook(came)
    losses[-1]().backward()
    for bucket, (flat, handle) in zip(buckets, sent):
        handle.wait()
        for p, part in zip(bucket, (flat / dist.get_world_size()).split([p.numel() for p in bucket])):
            p.grad.copy_(part.view_as(p))
""",
        "says": "RankError: ",
    },
    {
        "exercise": 7,
        "name": "one bucket: fewest messages",
        "code": """
def choose_cap(layers, layer_bytes, *, layer_s, latency_s, bytes_per_s):
    return layers * layer_bytes
""",
        "says": "backward over its computing, 7.2 ms a message, cap 256 KiB: measured 1.675, and at most 1.3 is",
    },
    {
        "exercise": 7,
        "name": "the smallest buckets: earliest start",
        "code": """
def choose_cap(layers, layer_bytes, *, layer_s, latency_s, bytes_per_s):
    return layer_bytes
""",
        "says": "backward over its computing, 7.2 ms a message, cap 16 KiB: measured 1.8625, and at most 1.3 is",
    },
]
