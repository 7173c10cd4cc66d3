"""What the figures of layers read in a run of `fsdp`."""

TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 0.1}  # of losses, from those of DDP
SETTINGS = {  # what tells two runs apart, in words
    "implementation": {"by_hand": "by hand", "torch": "FSDP2"},
    "wrap": {"each_layer": "each layer", "some_layers": "every second layer", "whole_model": "whole model"},
    "reshard_after_forward": {True: "freed after forward", False: "kept after forward"},
}


def settings(runs: list) -> list[str]:
    """What tells each run from the others, such as 'prefetch 1'; all of it where there is one or nothing differs."""
    rows = [_parts(run) for run in runs]
    differs = [len(set(column)) > 1 for column in zip(*rows, strict=True)]
    if not any(differs):
        differs = [True] * len(differs)
    return [", ".join(part for part, yes in zip(row, differs, strict=True) if yes and part) for row in rows]


def _parts(run) -> list[str]:
    config, gbps = run.config, run.environment.link_gbps
    K = int(config["accumulation_steps"])
    return [
        f"k = {len(run.results)}",
        *(words[config[field]] for field, words in SETTINGS.items()),
        f"prefetch {config['prefetch']}",
        f"K = {K}, reduced {'each time' if config['sync'] == 'every' else 'at the last'}" if K > 1 else "K = 1",
        f"{gbps:g} Gb/s" if gbps else "no link",
    ]


def spans(result: dict) -> list[tuple[str, int, float, float]]:
    """(what, number of the group, start, end) in ms, what being coming, whole, forward, backward or scatter."""
    places = {name: number for number, name in enumerate(result["group_names"])}
    found = [("whole", one["unit"], 1e3 * one["from_s"], 1e3 * one["to_s"]) for one in result["whole"]]
    for event in result["timeline"]:
        one = event if isinstance(event, dict) else vars(event)
        what, name = one["name"].split(" ", 1)
        if what in ("gather", "forward", "backward", "scatter"):
            kind = "coming" if what == "gather" else what
            found.append((kind, places[name], 1e3 * one["start_s"], 1e3 * one["end_s"]))
    return found


def whole_bytes(result: dict) -> tuple[list[float], list[tuple[int, int]]]:
    """(moments in ms, at each the bytes of the layers that are whole and of those that are on their way)."""
    sizes = [size * result["wire_item_bytes"] for size in result["group_sizes"]]
    found = [one for one in spans(result) if one[0] in ("whole", "coming")]
    moments = sorted({at for _, _, start, end in found for at in (start, end)})
    held = [
        tuple(
            sum(sizes[unit] for what, unit, start, end in found if what == kind and start <= at < end)
            for kind in ("whole", "coming")
        )
        for at in moments
    ]
    return moments, held


def trained_as_ddp(run) -> bool:
    dtype = "bfloat16" if run.config["mixed_precision"] else run.config["dtype"]
    return run.facts["max_difference_from_ddp"] <= TOLERANCE[dtype]
