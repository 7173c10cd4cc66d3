"""Wrong answers that students give in lab 3, and what the checks say to them."""

MISTAKES = [
    {
        "exercise": 1,
        "name": "the ring is left open at its end",
        "code": """
def neighbours(rank, k):
    return rank + 1, rank - 1
""",
        "says": "the neighbours of ranks 0 to 3: measured .*1, -1.*, expected",
    },
    {
        "exercise": 2,
        "name": "forgets the remainder",
        "code": """
def chunk_sizes(n, k):
    return [n // k] * k
""",
        "says": "elements in the 4 chunks of 10, together: measured 8, expected 10",
    },
    {
        "exercise": 2,
        "name": "cuts by torch.chunk, which rounds the size up",
        "code": """
def chunk_sizes(n, k):
    return [len(chunk) for chunk in torch.empty(n).chunk(k)]
""",
        "says": "sizes of the 4 chunks of 10: measured .3, 3, 3, 1., expected .3, 3, 2, 2.",
    },
    {
        "exercise": 3,
        "name": "every rank sends first",
        "code": """
def exchange(outgoing, incoming):
    rank, k = dist.get_rank(), dist.get_world_size()
    dist.send(outgoing, (rank + 1) % k)
    dist.recv(incoming, (rank - 1) % k)
""",
        "says": "RankError: ranks 0 and 1",
    },
    {
        "exercise": 4,
        "name": "adds into the chunk that it sends",
        "code": """
def reduce_scatter(tensor, post):
    rank, k = dist.get_rank(), dist.get_world_size()
    chunks = list(tensor.clone().tensor_split(k))
    for step in range(k - 1):
        send, receive = (rank - 1 - step) % k, (rank - 2 - step) % k
        incoming = torch.empty_like(chunks[receive])
        post.exchange(chunks[send], incoming)
        chunks[send] += incoming
    return chunks[rank]
""",
        "says": "chunk 0 of 2, n = 1200: measured .*, expected",
    },
    {
        "exercise": 4,
        "name": "adds in place, so that the caller's gradient changes",
        "code": """
def reduce_scatter(tensor, post):
    rank, k = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(k)
    for step in range(k - 1):
        incoming = torch.empty_like(chunks[(rank - 2 - step) % k])
        post.exchange(chunks[(rank - 1 - step) % k], incoming)
        chunks[(rank - 2 - step) % k].add_(incoming)
    return chunks[rank]
""",
        "says": "whether rank 0's own tensor is as it was: measured False, expected True",
    },
    {
        "exercise": 4,
        "name": "passes whole tensors round and keeps its chunk",
        "code": """
def reduce_scatter(tensor, post):
    rank, k = dist.get_rank(), dist.get_world_size()
    whole, outgoing = tensor.clone(), tensor
    for _ in range(k - 1):
        incoming = torch.empty_like(tensor)
        post.exchange(outgoing, incoming)
        whole += incoming
        outgoing = incoming
    return whole.tensor_split(k)[rank]
""",
        "says": "bytes sent by one rank of 2: measured 9,600 bytes, and at most 4,800 bytes is allowed",
    },
    {
        "exercise": 4,
        "name": "cuts into chunks of n // k and loses the remainder",
        "code": """
def reduce_scatter(tensor, post):
    rank, k = dist.get_rank(), dist.get_world_size()
    n = len(tensor) // k
    chunks = [tensor[i * n : (i + 1) * n] for i in range(k)]
    for step in range(k - 1):
        receive = (rank - 2 - step) % k
        incoming = torch.empty_like(chunks[receive])
        post.exchange(chunks[(rank - 1 - step) % k], incoming)
        chunks[receive] = chunks[receive] + incoming
    return chunks[rank]
""",
        "says": "chunk 0 of 4, n = 1203: measured 300 numbers, expected 301",
    },
    {
        "exercise": 5,
        "name": "one step too few: the last chunk never comes",
        "code": """
def all_gather(chunk, n, post):
    rank, k = dist.get_rank(), dist.get_world_size()
    whole = chunk.new_zeros(n)
    chunks = whole.tensor_split(k)
    chunks[rank].copy_(chunk)
    for step in range(k - 2):
        post.exchange(chunks[(rank - step) % k], chunks[(rank - 1 - step) % k])
    return whole
""",
        "says": "what rank 0 of 2 holds, n = 1200: measured 0, expected .* .the worst of 600 of 1200",
    },
    {
        "exercise": 6,
        "name": "gathers at rank 0 and sends the sum to each",
        "code": """
def all_reduce(tensor, post):
    rank, k = dist.get_rank(), dist.get_world_size()
    if rank != 0:
        post.send(tensor, 0)
        post.receive(tensor, 0)
        return
    incoming = torch.empty_like(tensor)
    for other in range(1, k):
        post.receive(incoming, other)
        tensor += incoming
    for other in range(1, k):
        post.send(tensor, other)
""",
        "says": "sent by one rank of 4, n = 1200: measured 3 S, and at most 1.55 S is allowed",
    },
    {
        "exercise": 6,
        "name": "calls torch's all-reduce",
        "code": """
def all_reduce(tensor, post):
    dist.all_reduce(tensor)
""",
        "says": "collectives of torch that rank 0 called: measured .'all_reduce'., expected \\[\\]",
    },
    {
        "exercise": 7,
        "name": "sends to each rank in turn",
        "code": """
def broadcast(tensor, source, post):
    rank, k = dist.get_rank(), dist.get_world_size()
    for part in tensor.tensor_split(8):
        for other in range(k):
            if other != source and rank == source:
                post.send(part, other)
            elif other == rank != source:
                post.receive(part, source)
""",
        "says": "bytes sent by one rank of 4: measured 28,800 bytes, and at most 9,600 bytes is allowed",
    },
]
