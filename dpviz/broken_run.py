"""Find the broken rank: a real run with a hidden fault, the evidence that its ranks put on record, and a diagnosis."""

from __future__ import annotations

import html
import random

import ipywidgets as w

from dpviz.contract.check import check_contract
from dpviz.figures.fault_board import LETTERS, groups
from dpviz.questions.contract import Config
from dpviz.questions.optimizer_state import FAULTS
from dpviz.ranks.launch import launch
from dpviz.widgets.controls import COMMON
from dpviz.widgets.looks import LONGEST_REPR, sheet, span
from dpviz.widgets.said import Said
from dpviz.wrong_value import WrongValue

EVERY = "every rank"
ON_EVERY_RANK = {"no_all_reduce", "scheduler_steps_k_times", "same_dropout_mask"}
FROM_THE_START = {"different_init", "scheduler_steps_k_times", "same_dropout_mask"}
NOT_TOLD_APART = {"none", "unchecked_infinity"}  # by what the ranks record: whose loss it was is not among it
HIDDEN = [fault for fault in FAULTS if fault not in NOT_TOLD_APART]
EVIDENCE = {
    "step": "optimizer updates made",
    "lr": "learning rate",
    "scaler": "loss scale",
    "tokens": "what the loss was divided by",
    "gradients": "gradient after the all-reduce, a letter for each value",
    "optimizer": "moments, a letter for each value",
    "parameters": "parameters after the update, a letter for each value",
    "initial": "parameters before the first update, a letter for each value",
    "dropout": "dropout mask, a letter for each value",
}
NUMBERS = ("step", "lr", "scaler", "tokens")
TINTS = ("#ffffff", "#ffe3b3", "#cfe8f7", "#cdeee3", "#f6dcea", "#fbf6c4")  # of the most common value, and the others


def broken_run(number: int = 1, *, world_size: int = 4, steps: int = 8) -> BrokenRun:
    """Launch a training run with a fault that `number` decides and nobody tells, and return a widget in which to look
    at the evidence and to answer. `.look(name)`, `.answer(...)` and `.tell()` do the same without a mouse.

    Raises ValueError where a majority cannot be right (fewer than 3 ranks), or there is no room for the fault (fewer
    than 6 steps). Built in lesson 11.
    """
    return BrokenRun(number, world_size=world_size, steps=steps)


class BrokenRun(w.VBox):
    """See `broken_run`. `.looked_at` are the names of the evidence that was asked for."""

    def __init__(self, number: int, *, world_size: int, steps: int):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise WrongValue(f"number is {number!r}, but it must be a whole number from 0. Each is another run.")
        whole = isinstance(world_size, int) and isinstance(steps, int)
        if not (whole and 3 <= world_size <= 8 and 6 <= steps <= 20):
            raise WrongValue(
                f"world_size is {world_size!r} and steps {steps!r}, but 3 to 8 ranks and 6 to 20 steps are allowed: "
                "with two ranks nobody can tell which of them is right."
            )
        every = random.Random("broken runs 322").sample(HIDDEN, len(HIDDEN))  # so that neighbours differ
        chance = random.Random(f"broken run {number}")
        self._fault = every[number % len(every)]
        self._rank, self._step = chance.randrange(world_size), chance.randrange(3, steps - 2)  # 3: the scale has grown
        config = Config(fault=self._fault, fault_rank=self._rank, fault_step=self._step, steps=steps, seed=number)
        self._run = launch("dpviz.experiments.contract:experiment", config, world_size=world_size)
        self.number, self.looked_at, self._told = number, [], "not answered"
        super().__init__(self._parts(world_size, steps), layout=w.Layout(width="100%", max_width="1000px"))
        self.add_class("dpviz-panel")

    def _parts(self, world_size: int, steps: int) -> list[w.Widget]:
        self._toggles = {name: w.ToggleButton(description=name, tooltip=told) for name, told in EVIDENCE.items()}
        for toggle in self._toggles.values():
            toggle.layout.width = "auto"
            toggle.observe(lambda _: self._show_board(), "value")
        room = w.Layout(width="auto")
        self._choices = {
            name: w.Dropdown(options=[(f"{name}?", None), *((str(one), one) for one in some)], layout=room, **COMMON)
            for name, some in (("fault", HIDDEN), ("rank", [*range(world_size), EVERY]), ("step", range(steps)))
        }
        self._button = w.Button(description="answer", layout=room)
        self._button.on_click(lambda _: self._clicked())
        self._board, self._said = w.HTML(), w.HTML()
        end = html.escape(self._end())
        asked = f"Broken run {self.number}: one fault is hidden in {world_size} ranks and {steps} steps. {end}"
        wraps = w.Layout(flex_flow="row wrap", align_items="center")
        looks = w.HBox([w.HTML(span("look at", "dpviz-soft")), *self._toggles.values()], layout=wraps)
        answers = w.HBox([*self._choices.values(), self._button], layout=wraps)
        question = w.HTML(f"<div class='dpviz-question'>{asked}</div>")
        return [w.HTML(sheet()), question, looks, self._board, answers, self._said]

    def _end(self) -> str:
        failure = self._run.contract["communication"]["failure"]
        return f"The launch failed: {failure['why']}." if failure else "The launch ended without an error."

    def __repr__(self) -> str:
        looked = ", ".join(self.looked_at) or "nothing yet"
        text = f"broken run {self.number}: {len(self._run.results)} ranks, looked at {looked}; {self._told}"
        return text[:LONGEST_REPR]

    def look(self, name: str):
        """Return what every rank recorded under `name` (see EVIDENCE) in each step: a pandas DataFrame, a row a rank;
        equal letters are equal values.
        """
        import pandas

        if not isinstance(name, str) or name not in EVIDENCE:
            raise WrongValue(f"there is no evidence named {name!r}. There is: {', '.join(EVIDENCE)}.")
        self.looked_at += [] if name in self.looked_at else [name]
        columns = {step: [text for text, _ in of_ranks] for step, of_ranks in self._seen(name).items()}
        table = pandas.DataFrame(columns, index=[f"rank {rank}" for rank in range(len(self._run.results))])
        return table.rename_axis(columns=f"{name}, step")

    def answer(self, *, fault: str, rank: int | str, step: int) -> Said:
        """Return what of a diagnosis is right. `rank` is a number, or "every rank"; `step` the first that is wrong.
        Raises ValueError for a fault that does not exist.
        """
        if fault not in HIDDEN:
            raise WrongValue(f"there is no fault named {fault!r}. One of these is hidden: {', '.join(HIDDEN)}.")
        truth, given = self._truth(), {"fault": fault, "rank": rank, "step": step}
        wrong = [name for name in truth if given[name] != truth[name]]
        looks = f"{len(self.looked_at)} look{'s' * (len(self.looked_at) != 1)}"
        if not wrong:
            self._told = "found"
            return Said("✓", f"Found, with {looks}.", f"{fault}: {FAULTS[fault]}.")
        right = [name for name in truth if name not in wrong] or ["nothing"]
        self._told = "not found yet"
        return Said("→", f"Right: {', '.join(right)}. Not right: {', '.join(wrong)}.", "Look again.")

    def tell(self) -> Said:
        """Return what was hidden, and what the contract of the run says first."""
        truth, first = self._truth(), check_contract(self._run)[0]
        where = truth["rank"] if truth["rank"] == EVERY else f"rank {truth['rank']}"
        hidden = f"Hidden was {truth['fault']}, {where}, from step {truth['step']} on."
        return Said("", hidden, f"The contract says: {first}.")

    def _truth(self) -> dict[str, int | str]:
        rank = EVERY if self._fault in ON_EVERY_RANK else self._rank
        return {"fault": self._fault, "rank": rank, "step": 0 if self._fault in FROM_THE_START else self._step}

    def _seen(self, name: str) -> dict[int, list[tuple[str, int]]]:
        """Return, step by step, what each rank recorded, in words, and the number of its group of equal values."""
        seen = {}
        for step in self._run.contract["consistency"]["steps"]:
            values = step["values"].get(name)
            if values is not None:
                of_ranks = groups(values)
                texts = [f"{v:.4g}" for v in values] if name in NUMBERS else [LETTERS[group] for group in of_ranks]
                seen[step["number"]] = [*zip(texts, of_ranks, strict=True)]
        return seen

    def _show_board(self) -> None:
        chosen = [name for name, toggle in self._toggles.items() if toggle.value]
        self.looked_at += [name for name in chosen if name not in self.looked_at]
        self._board.value = "".join(self._table(name) for name in chosen)

    def _table(self, name: str) -> str:
        seen = self._seen(name)
        head = "".join(f"<th scope='col'>{step}</th>" for step in seen)
        rows = "".join(
            f"<tr><th scope='row'>rank {rank}</th>"
            + "".join(
                f"<td style='background:{TINTS[min(group, len(TINTS) - 1)]};color:#222'>{html.escape(text)}</td>"
                for text, group in (of_ranks[rank] for of_ranks in seen.values())
            )
            + "</tr>"
            for rank in range(len(self._run.results))
        )
        about = f"<caption><b>{name}</b>: {html.escape(EVIDENCE[name])}</caption>"
        return f"<table class='dpviz-board'>{about}<tr><th scope='col'>step</th>{head}</tr>{rows}</table>"

    def _clicked(self) -> None:
        given = {name: choice.value for name, choice in self._choices.items()}
        open_ones = [name for name, value in given.items() if value is None]
        told = Said("→", f"Choose the {' and the '.join(open_ones)} first.", "") if open_ones else self.answer(**given)
        self._said.value = told._repr_html_()
