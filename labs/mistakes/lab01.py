"""Wrong answers that students give in lab 1, and what the checks say to them."""

MISTAKES = [
    {
        "exercise": 1,
        "name": "takes a block of k samples instead of every k-th",
        "code": """
def my_part(batch, rank, k):
    return batch[rank * k : (rank + 1) * k]
""",
        "says": "the samples of rank 1 of 4: measured .*, expected .1, 5, 9.",
    },
    {
        "exercise": 2,
        "name": "forgets to divide by k",
        "code": """
def average_gradients(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
""",
        "says": "a gradient on rank 0 of 2: measured .*, expected",
    },
    {
        "exercise": 2,
        "name": "gives frozen parameters a gradient",
        "code": """
def average_gradients(model):
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
""",
        "says": "whether frozen parameters still have no gradient: measured .False, False.",
    },
    {
        "exercise": 3,
        "name": "averages the parameters instead of taking rank 0's",
        "code": """
def broadcast_parameters(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.detach())
        parameter.data /= dist.get_world_size()
""",
        "says": "a parameter on rank 0, against rank 0's: measured",
    },
    {
        "exercise": 4,
        "name": "leaves out the factor k",
        "code": """
def loss_of_mine(local_sum, samples_of_all, k):
    return local_sum / samples_of_all
""",
        "says": "a gradient, ranks with .12, 12. samples: measured",
    },
    {
        "exercise": 5,
        "name": "averages parameters after the step instead of gradients before it",
        "code": """
def train(model, x, y, *, steps, lr):
    rank, k = dist.get_rank(), dist.get_world_size()
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rank::k]), y[rank::k]).backward()
        optimizer.step()
        for parameter in model.parameters():
            dist.all_reduce(parameter.detach())
            parameter.data /= k
    return model
""",
        "says": "a parameter after 5 steps: measured",
    },
    {
        "exercise": 5,
        "name": "does not start alike",
        "code": """
def train(model, x, y, *, steps, lr):
    rank, k = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rank::k]), y[rank::k]).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= k
        optimizer.step()
    return model
""",
        "says": "whether rank 1 ends with rank 0's parameters: measured False",
    },
]
