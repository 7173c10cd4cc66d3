"""The game: a hidden fault can be found from the evidence, the answer is judged, nothing is given away before."""

import re

import pytest

import dpviz
from dpviz.broken_run import EVERY, HIDDEN


@pytest.fixture(scope="module")
def every():
    return [dpviz.broken_run(number) for number in range(len(HIDDEN))]


def test_each_fault_is_hidden_once_and_seen_first_where_it_was_hidden(every):
    assert {case._truth()["fault"] for case in every} == set(HIDDEN)
    for case in every:
        truth = case._truth()
        first = re.search(r"The contract says: step (\d+): (?:the run was resumed by )?(.*)", repr(case.tell()))
        assert int(first[1]) == truth["step"], case.tell()
        who = "the ranks" if truth["rank"] == EVERY else f"rank {truth['rank']} "
        assert first[2].startswith(who), case.tell()


def test_the_evidence_shows_the_step_without_the_contracts_help(every):
    """In the steps before, everybody agrees; in the hidden one, some evidence tells ranks apart, or from the right."""
    for case in every:
        truth, seen = case._truth(), {}
        for name in ("step", "lr", "scaler", "tokens", "gradients", "optimizer", "parameters", "initial"):
            columns = case.look(name)
            seen |= {step: seen.get(step, False) or columns[step].nunique() > 1 for step in columns}
        if truth["fault"] == "left_out_collective":
            assert truth["step"] not in seen  # no rank's record of it is whole
        elif truth["rank"] == EVERY and truth["fault"] != "no_all_reduce":
            assert not any(seen.values())  # they all err alike: the values themselves tell, or the dropout
        else:
            assert next(step for step in sorted(seen) if seen[step]) == truth["step"], truth


def test_an_answer_is_told_what_of_it_is_right():
    case = dpviz.broken_run(1)
    truth = case._truth()
    case.look("lr")
    assert repr(case.answer(**truth)).startswith(f"✓ Found, with 1 look. {truth['fault']}: ")
    assert repr(case.answer(**truth | {"step": 7})) == "→ Right: fault, rank. Not right: step. Look again."
    other = next(fault for fault in HIDDEN if fault != truth["fault"])
    nothing = case.answer(fault=other, rank=truth["rank"] + 1, step=7)
    assert repr(nothing) == "→ Right: nothing. Not right: fault, rank, step. Look again."


def test_nothing_is_given_away():
    case = dpviz.broken_run(1)
    assert repr(case) == "broken run 1: 4 ranks, looked at nothing yet; not answered"
    shown = " ".join(str(widget.value) for widget in (case.children[1], case._board, case._said))
    assert case._fault not in shown and "rank" not in case._board.value


def test_the_widgets_do_what_the_methods_do():
    case = dpviz.broken_run(1)
    case._button.click()
    assert "Choose the fault and the rank and the step first." in case._said.value
    case._toggles["lr"].value = True
    assert case.looked_at == ["lr"] and "<caption><b>lr</b>: learning rate</caption>" in case._board.value
    case._toggles["lr"].value = False
    assert case._board.value == "" and case.looked_at == ["lr"]
    for name, value in case._truth().items():
        case._choices[name].value = value
    case._button.click()
    assert "Found, with 1 look." in case._said.value


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: dpviz.broken_run(-1), "number is -1, but it must be a whole number from 0"),
        (lambda: dpviz.broken_run("one"), "number is 'one'"),
        (lambda: dpviz.broken_run(1, world_size=2), "with two ranks nobody can tell which of them is right"),
        (lambda: dpviz.broken_run(1, steps=5), "6 to 20 steps are allowed"),
        (lambda: dpviz.broken_run(1, world_size="4"), "world_size is '4'"),
        (lambda: dpviz.broken_run(1, steps=None), "steps None"),
        (lambda: dpviz.broken_run(1).look(["lr"]), "there is no evidence named ['lr']"),
        (lambda: dpviz.broken_run(1).look("mood"), "there is no evidence named 'mood'. There is: step, lr"),
        (lambda: dpviz.broken_run(1).answer(fault="none", rank=0, step=0), "there is no fault named 'none'"),
    ],
)
def test_what_cannot_be_is_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        call()
