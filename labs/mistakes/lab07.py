"""Wrong answers that students give in lab 7, and what the checks say to them."""

MISTAKES = [
    {
        "exercise": 1,
        "name": "a sum, which knows no order",
        "code": """
def digest(tensors):
    return str(sum(tensor.double().sum().item() for tensor in tensors))[:16]
""",
        "says": r"whether (rank 1 has rank 0's, one bit|\(1, 2\) and \(2, 1\) have one)",
    },
    {
        "exercise": 1,
        "name": "Python's hash, which another process salts otherwise",
        "code": """
def digest(tensors):
    parts = b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)
    return str(hash(parts))[:16]
""",
        "says": "whether this process finds that of rank 0: measured False, expected True|BFloat16",
    },
    {
        "exercise": 2,
        "name": "seeds the global random state",
        "code": """
def probe(tensors, *, seed, values):
    torch.manual_seed(seed)
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    return str(flat[torch.randperm(len(flat))[:values]].tolist())
""",
        "says": "whether rank 0's random state is as before: measured False, expected True",
    },
    {
        "exercise": 2,
        "name": "draws the places from each rank's own random state",
        "code": """
def probe(tensors, *, seed, values):
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    return str(flat[torch.randperm(len(flat))[:values]].tolist())
""",
        "says": "whether ranks with equal parameters agree: measured False, expected True",
    },
    {
        "exercise": 2,
        "name": "looks at the same places in every step",
        "code": """
def probe(tensors, *, seed, values):
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    return str(flat[:values].tolist())
""",
        "says": "steps of 400 that see an edit at place 0: measured 400, and at most 90 is allowed",
    },
    {
        "exercise": 3,
        "name": "takes rank 0 for right",
        "code": """
def minority(values):
    return [rank for rank, value in enumerate(values) if value != values[0]]
""",
        "says": r"ranks off, where rank 0 of 4 was edited: measured \[1, 2, 3\], expected \[0\]",
    },
    {
        "exercise": 3,
        "name": "names the second of two ranks, though neither leads",
        "code": """
from collections import Counter


def minority(values):
    most = Counter(values).most_common(1)[0][0]
    return [rank for rank, value in enumerate(values) if value != most]
""",
        "says": r"ranks off, of a and b on two ranks: measured \[1\], expected \[0, 1\]",
    },
    {
        "exercise": 4,
        "name": "votes, where a rule is written",
        "code": """
from collections import Counter


def off_schedule(step, schedule):
    rates = step["values"]["lr"]
    most = Counter(rates).most_common(1)[0][0]
    return [rank for rank, lr in enumerate(rates) if lr != most]
""",
        "says": r"ranks off in step 0, where both step the schedule twice: measured \[\], expected \[0, 1\]",
    },
    {
        "exercise": 4,
        "name": "counts no update for step 0",
        "code": """
import math


def off_schedule(step, schedule):
    due = schedule["lr"] * (1 + math.cos(math.pi * step["number"] / schedule["steps"])) / 2
    return [rank for rank, lr in enumerate(step["values"]["lr"]) if abs(lr - due) > 1e-6 * schedule["lr"]]
""",
        "says": r"ranks off, step by step, where nothing is wrong: measured \[\[0, 1\]",
    },
    {
        "exercise": 5,
        "name": "complains only where all ranks are alike",
        "code": """
def shared(values):
    return list(range(len(values))) if len(set(values)) == 1 else []
""",
        "says": r"ranks that share a mask, seeded \(8, 5, 6, 5\): measured \[\], expected \[1, 3\]",
    },
    {
        "exercise": 5,
        "name": "takes dropout for what should agree",
        "code": """
from collections import Counter


def shared(values):
    most = Counter(values).most_common(1)[0][0]
    return [rank for rank, value in enumerate(values) if value != most]
""",
        "says": r"ranks that share a mask, seeded \(5, 5, 5\): measured \[\], expected \[0, 1, 2\]",
    },
    {
        "exercise": 6,
        "name": "compares only the parameters",
        "code": """
def first_divergence(steps):
    for step in steps:
        ranks = compare.unequal(step["values"]["parameters"])
        if ranks:
            return step["number"], ranks
""",
        "says": "first step and ranks of a run with .*: measured .*, expected",
    },
    {
        "exercise": 6,
        "name": "names the last divergent step",
        "code": """
def first_divergence(steps):
    found = None
    for step in steps:
        ranks = {rank for name in SAME for rank in compare.unequal(step["values"][name])}
        if ranks:
            found = step["number"], sorted(ranks)
    return found
""",
        "says": r"first step and ranks of a run with .*: measured \(5, .*, expected \([34], ",
    },
    {
        "exercise": 7,
        "name": "blames whoever differs from rank 0",
        "code": """
def diagnose(steps, schedule):
    causes = {"scaler": "overflow_on_one_rank", "step": "skipped_step", "lr": "lr_differs"}
    causes |= {"tokens": "token_weights_differ", "parameters": "edited_parameter"}
    for step in steps:
        if compare.shared(step["values"]["dropout"]):
            return "same_dropout_mask", None, step["number"]
        for name, fault in causes.items():
            values = step["values"][name]
            for rank, value in enumerate(values):
                if value != values[0]:
                    return fault, rank, step["number"]
""",
        "says": "the diagnosis of a run of 4 ranks: measured .'.*', 1, .*, expected .'.*', 0, ",
    },
    {
        "exercise": 7,
        "name": "takes a symptom for the cause",
        "code": """
def diagnose(steps, schedule):
    causes = {"parameters": "edited_parameter", "scaler": "overflow_on_one_rank"}
    causes |= {"step": "skipped_step", "lr": "lr_differs", "tokens": "token_weights_differ"}
    for step in steps:
        if compare.shared(step["values"]["dropout"]):
            return "same_dropout_mask", None, step["number"]
        for name, fault in causes.items():
            ranks = compare.unequal(step["values"][name])
            if ranks:
                return fault, ranks[0], step["number"]
""",
        "says": "the diagnosis of a run of 4 ranks: measured .'edited_parameter', .*, expected .'[a-z]",
    },
    {
        "exercise": 8,
        "name": "a lower count of updates is always a skipped step",
        "code": """
def diagnose_all(steps, schedule):
    causes = {"scaler": "resume_without_scaler", "step": "skipped_step", "tokens": "token_weights_differ"}
    causes |= {"gradients": "no_all_reduce", "initial": "different_init", "lr": "schedule_by_own_tokens"}
    causes |= {"optimizer": "resume_without_optimizer", "parameters": "edited_parameter"}
    for step in steps:
        if compare.shared(step["values"]["dropout"]):
            return "same_dropout_mask", None, step["number"]
        for name, fault in causes.items():
            ranks = compare.unequal(step["values"].get(name, [0]))
            if ranks:
                return fault, ranks[0] if len(ranks) == 1 else None, step["number"]
    return "none", None, None
""",
        "says": "the diagnosis of a run of 3 ranks: measured .*, expected",
    },
]
