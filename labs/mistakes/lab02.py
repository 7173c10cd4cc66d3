"""Wrong answers that students give in lab 2, and what the checks say to them."""

MISTAKES = [
    {
        "exercise": 1,
        "name": "the mean of the micro-batches' means",
        "code": """
def mean_over_all(tokens, loss_sums):
    means = [s / n for ns, sums in zip(tokens, loss_sums) for n, s in zip(ns, sums)]
    return sum(means) / len(means)
""",
        "says": "the mean loss on two ranks: measured 1.75, expected 1.25",
    },
    {
        "exercise": 1,
        "name": "mends accumulation, and takes the mean of the ranks' token means",
        "code": """
def mean_over_all(tokens, loss_sums):
    means = [sum(sums) / sum(ns) for ns, sums in zip(tokens, loss_sums)]
    return sum(means) / len(means)
""",
        "says": "the mean loss on two ranks: measured 1.625, expected 1.25",
    },
    {
        "exercise": 2,
        "name": "cross entropy's default, a mean over the rank's own tokens",
        "code": """
def loss_of_mine(token_losses):
    return token_losses.mean()
""",
        "says": "the gradient, ranks with 1 and 3 tokens: measured 4.5, expected 2.75",
    },
    {
        "exercise": 2,
        "name": "all-reduces the loss before backward",
        "code": """
def loss_of_mine(token_losses):
    loss, total = token_losses.sum(), torch.tensor(len(token_losses))
    dist.all_reduce(loss.data)
    dist.all_reduce(total)
    return loss / total
""",
        "says": "the gradient, ranks with 1 and 3 tokens: measured 1.375, expected 2.75",
    },
    {
        "exercise": 3,
        "name": "divides the last, short window by K",
        "code": """
def train_an_epoch(model, optimizer, micro_batches, K):
    for first in range(0, len(micro_batches), K):
        optimizer.zero_grad()
        for x, y in micro_batches[first : first + K]:
            (models.loss(model, x, y) / K).backward()
        optimizer.step()
""",
        "says": "how far w moved in 125 micro-batches, K = 4: measured 31.25, expected 32",
    },
    {
        "exercise": 3,
        "name": "steps at every K-th micro-batch, and forgets the rest of the epoch",
        "code": """
def train_an_epoch(model, optimizer, micro_batches, K):
    optimizer.zero_grad()
    for number, (x, y) in enumerate(micro_batches, start=1):
        (models.loss(model, x, y) / K).backward()
        if number % K == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        "says": "how far w moved in 125 micro-batches, K = 4: measured 31, expected 32",
    },
    {
        "exercise": 3,
        "name": "divides by the window's length, though its last micro-batch holds fewer samples",
        "code": """
def train_an_epoch(model, optimizer, micro_batches, K):
    for first in range(0, len(micro_batches), K):
        window = micro_batches[first : first + K]
        optimizer.zero_grad()
        for x, y in window:
            (models.loss(model, x, y) / len(window)).backward()
        optimizer.step()
""",
        "says": "a parameter, micro-batches of .6, 6, 6, 6, 1., K = 3: measured",
    },
    {
        "exercise": 4,
        "name": "divides by all positions",
        "code": """
def response_loss(token_losses, is_response):
    total = torch.tensor(token_losses.numel())
    dist.all_reduce(total)
    return (token_losses * is_response).sum() * dist.get_world_size() / total
""",
        "says": "the gradient, 2 and 6 response tokens: measured 1.22222, expected 2.75",
    },
    {
        "exercise": 4,
        "name": "a mean over the rank's own response tokens",
        "code": """
def response_loss(token_losses, is_response):
    return token_losses[is_response].mean()
""",
        "says": "the gradient, 2 and 6 response tokens: measured 2.5, expected 2.75",
    },
    {
        "exercise": 5,
        "name": "zeroes the gradient in between, so that only the last micro-batch is averaged",
        "code": """
def accumulate(ddp, window):
    for x, y in window:
        ddp.zero_grad()
        (models.loss(ddp, x, y) / len(window)).backward()
""",
        "says": "a gradient on rank 0 of 2, K = 4: measured",
    },
    {
        "exercise": 5,
        "name": "no_sync around all of them",
        "code": """
def accumulate(ddp, window):
    with ddp.no_sync():
        for x, y in window:
            (models.loss(ddp, x, y) / len(window)).backward()
""",
        "says": "a gradient on rank 0 of 2, K = 4: measured",
    },
    {
        "exercise": 5,
        "name": "no_sync round the backward only",
        "code": """
def accumulate(ddp, window):
    for number, (x, y) in enumerate(window, start=1):
        loss = models.loss(ddp, x, y) / len(window)
        if number < len(window):
            with ddp.no_sync():
                loss.backward()
        else:
            loss.backward()
""",
        "says": "how often the gradient was all-reduced: measured 4, expected 1",
    },
    {
        "exercise": 6,
        "name": "divides by the tokens of its own window, as the mended trainers did",
        "code": """
def train(ddp, optimizer, windows):
    for window in windows:
        total = sum((y != -100).sum() for _, y in window)
        optimizer.zero_grad()
        for x, y in window[:-1]:
            with ddp.no_sync():
                (models.loss(ddp, x, y, "sum") / total).backward()
        x, y = window[-1]
        (models.loss(ddp, x, y, "sum") / total).backward()
        optimizer.step()
""",
        "says": "a parameter on rank 0 of 2, after 3 updates: measured",
    },
    {
        "exercise": 6,
        "name": "all-reduces the gradient in every micro-batch",
        "code": """
def train(ddp, optimizer, windows):
    k = dist.get_world_size()
    for window in windows:
        total = sum((y != -100).sum() for _, y in window)
        dist.all_reduce(total)
        optimizer.zero_grad()
        for x, y in window:
            (models.loss(ddp, x, y, "sum") * k / total).backward()
        optimizer.step()
""",
        "says": "gradients all-reduced in 3 updates, k = 2: measured 6, expected 3",
    },
    {
        "exercise": 7,
        "name": "0 times a mean over no tokens",
        "code": """
def loss_by_answers(token_losses, is_response):
    lengths = is_response.sum(dim=1)
    answers = (lengths > 0).sum()
    dist.all_reduce(answers)
    means = (token_losses * is_response).sum(dim=1) / lengths
    return (means * (lengths > 0)).sum() * dist.get_world_size() / answers
""",
        "says": "a fourth answer of mean loss 4 and one sequence without: measured nan, expected 4",
    },
]
