"""Ask, keep the guess, reveal it beside the evidence: in a notebook, and where nobody answers."""

import sys

import nbclient
import nbformat
import plotly.graph_objects as go
import pytest

from dpviz.predict import Prediction, predict

QUESTION = "Four ranks forget to divide by k. It is as if ..."
OPTIONS = ["nothing changed", "lr were 4 times larger", "lr were <4> times smaller"]


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(sys.modules["dpviz.predict"], "_guesses", {})


def choose(guess: Prediction, option: str) -> None:
    guess._choice.value = option


@pytest.fixture
def revealed(monkeypatch):
    """A function that reveals, and returns what a notebook would display."""

    def reveal(guess, answer, **more) -> list:
        shown = []
        monkeypatch.setattr("IPython.display.display", shown.append)
        assert guess.reveal(answer, **more) is None
        return shown

    return reveal


def test_nothing_is_chosen_beforehand():
    guess = predict(QUESTION, OPTIONS)
    assert guess.guess is None and guess.options == tuple(OPTIONS)
    assert repr(guess) == f"{QUESTION} (no guess yet)"


def test_a_cell_that_is_run_again_remembers_the_guess():
    choose(predict(QUESTION, OPTIONS), OPTIONS[2])
    assert predict(QUESTION, OPTIONS).guess == OPTIONS[2]
    assert predict(QUESTION, OPTIONS[:2]).guess is None  # another question


def test_the_repr_is_short_and_holds_the_guess():
    guess = predict(QUESTION * 5, OPTIONS)
    choose(guess, OPTIONS[1])
    assert len(repr(guess)) < 110 and repr(guess).endswith("… (guess: lr were 4 times larger)")


def test_a_right_guess_is_said_to_be(revealed):
    guess = predict(QUESTION, OPTIONS)
    choose(guess, OPTIONS[1])
    (told,) = revealed(guess, OPTIONS[1])
    assert repr(told) == "✓ Measured: lr were 4 times larger. That is what you expected."
    assert "That is what you expected" in guess._told.value


def test_what_a_formula_decides_is_not_called_measured(revealed):
    (told,) = revealed(predict(QUESTION, OPTIONS), OPTIONS[1], computed=True)
    assert repr(told).startswith("Computed: lr were 4 times larger.")


def test_another_guess_is_set_beside_the_answer_kindly(revealed):
    guess = predict(QUESTION, OPTIONS)
    choose(guess, OPTIONS[0])
    (told,) = revealed(guess, OPTIONS[1])
    text = repr(told)
    assert (
        text
        == "→ Measured: lr were 4 times larger. You expected: nothing changed. The evidence shows where the two part."
    )
    assert not any(word in text.lower() for word in ("wrong", "incorrect", "unfortunately", "!"))


def test_without_a_guess_the_answer_is_told_just_so(revealed):
    (told,) = revealed(predict(QUESTION, OPTIONS), OPTIONS[1])
    assert repr(told) == "Measured: lr were 4 times larger. No guess was made this time."


def test_text_is_escaped(revealed):
    guess = predict("<b>?", OPTIONS)
    (told,) = revealed(guess, OPTIONS[2])
    assert "&lt;4&gt;" in told._repr_html_() and "<b>?" not in guess.children[1].value


def test_evidence_follows_one_or_several(revealed):
    figure, table = go.Figure(), object()
    assert revealed(predict(QUESTION, OPTIONS), OPTIONS[0], evidence=figure)[1:] == [figure]
    assert revealed(predict(QUESTION, OPTIONS), OPTIONS[0], evidence=[figure, table])[1:] == [figure, table]


def test_an_answer_that_was_no_option_is_refused_with_a_sentence():
    with pytest.raises(
        ValueError, match="the answer is 'lr doubled', but it must be one of the options: 'nothing changed', "
    ):
        predict(QUESTION, OPTIONS).reveal("lr doubled")


@pytest.mark.parametrize("options", [[], ["one"], ["same", "same"], "yes"])
def test_options_must_leave_a_choice(options):
    with pytest.raises(ValueError, match="there must be two or more, each different|its options as a list of texts"):
        predict(QUESTION, options)


def test_a_notebook_that_runs_by_itself_says_the_same_every_time(tmp_path):
    cells = [
        f"from dpviz.predict import predict\nguess = predict({QUESTION!r}, {OPTIONS!r})\nguess",
        f"guess.reveal({OPTIONS[1]!r})",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3", store_widget_state=False).execute()
    asked, told = (cell.outputs[0]["data"]["text/plain"] for cell in notebook.cells)
    assert asked == f"{QUESTION} (no guess yet)"
    assert told == "Measured: lr were 4 times larger. No guess was made this time."
