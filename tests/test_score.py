"""Cards and their score: a guess before, one beside the evidence, half a point each; the same where nobody clicks."""

import sys

import nbclient
import nbformat
import pytest

from dpviz.figures.cards import Evidence
from dpviz.score import number, scoreboard

SENTENCE = "The larger the batch, the more <gradient> traffic."
OPTIONS = ["true: B times", "false: the same", "false: less"]


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(sys.modules["dpviz.predict"], "_guesses", {})
    monkeypatch.setattr(sys.modules["dpviz.score"], "_boards", {})


@pytest.fixture
def shown(monkeypatch):
    """What a notebook would display, in order."""
    displayed = []
    monkeypatch.setattr("IPython.display.display", displayed.append)
    return displayed


def played(board, name, *, first, second, answer=OPTIONS[1]):
    """The card, guessed before the run, revealed, and guessed again."""
    card = board.predict(name, SENTENCE, OPTIONS)
    card._choice.value = first
    card.reveal(answer)
    card._second.choice.value = second
    card._second._button.click()
    return card


RIGHT, WRONG, OTHER = OPTIONS[1], OPTIONS[0], OPTIONS[2]


@pytest.mark.parametrize(
    "first, second, points, words",
    [
        (RIGHT, RIGHT, 1, "You expected it, and the evidence did not shake you."),
        (WRONG, RIGHT, 0.5, "The evidence changed your mind."),
        (None, RIGHT, 0.5, "You read it from the evidence."),
        (RIGHT, WRONG, 0.5, "Your first guess had it."),
        (WRONG, OTHER, 0, "The evidence shows where the two part."),
        (None, None, 0, "No guess was made this time."),
    ],
)
def test_each_of_two_guesses_counts_half_a_point_and_none_costs_one(shown, first, second, points, words):
    card = played(scoreboard("cards"), "1", first=first, second=second)
    assert (card.points, card.told()) == (points, words)
    said = card._second._told.value
    assert f"Measured: {RIGHT}." in said and words in said
    assert f"{ {0: 'No point', 0.5: '½ point', 1: '1 point'}[points] }</b>, {card.board.so_far()} so far." in said


def test_the_sum_grows_with_verdicts_and_not_before(shown):
    board = scoreboard("cards")
    played(board, "1", first=RIGHT, second=RIGHT)
    played(board, "2", first=WRONG, second=RIGHT)
    played(board, "2b", first=RIGHT, second=WRONG)
    open_card = board.predict("3", SENTENCE, OPTIONS)
    open_card._choice.value = RIGHT
    open_card.reveal(RIGHT)
    assert board.points == 2 and board.so_far() == "2 of 3 points"
    assert "Look again at 2b." in board._table.value
    open_card._second._button.click()  # the first guess stands, unless another is chosen
    assert board.so_far() == "3 of 4 points"


def test_evidence_comes_first_and_does_not_tell_the_answer_to_whom_looks_in_a_browser(shown):
    board = scoreboard("cards")
    card = board.predict("1", SENTENCE, OPTIONS)
    card._choice.value = WRONG
    card.reveal(RIGHT, evidence=["a figure", "a table"])
    assert shown == ["a figure", "a table", card._second]
    seen = card._second._told.value + card._told.value + board._table.value
    assert RIGHT not in seen and f"You expected: {WRONG}." in seen
    assert not any(mark in board._table.value for mark in "✓→") and WRONG in board._table.value
    card._second._button.click()
    assert RIGHT in board._table.value


def test_the_first_guess_is_fixed_when_the_evidence_is_there(shown):
    card = scoreboard("cards").predict("1", SENTENCE, OPTIONS)
    card._choice.value = WRONG
    card.reveal(RIGHT)
    assert card._choice.disabled
    card._choice.value = RIGHT
    card.reveal(RIGHT)  # the cell is run again
    card._second._button.click()
    assert card.first == WRONG and card.points == 0


def test_cells_that_are_run_again_forget_nothing(shown):
    board = scoreboard("cards")
    card = played(board, "1", first=RIGHT, second=RIGHT)
    assert scoreboard("cards") is board and scoreboard("others") is not board
    assert board.predict("1", SENTENCE, OPTIONS) is card
    assert board.predict("1", "Another sentence.", OPTIONS) is not card
    assert board.points == 0 and len(board.cards) == 1


def test_texts_are_escaped(shown):
    board = scoreboard("cards")
    card = played(board, "<1>", first=WRONG, second=OTHER)
    for text in (board._table.value, card.children[1].value, card._second._told.value):
        assert "<gradient>" not in text and "<1>" not in text


def test_an_answer_that_was_no_option_is_refused_with_a_sentence(shown):
    with pytest.raises(ValueError, match="the answer is 'no', but it must be one of the options"):
        scoreboard("cards").predict("1", SENTENCE, OPTIONS).reveal("no")
    assert shown == []


@pytest.mark.parametrize("points, written", [(0, "0"), (0.5, "½"), (1, "1"), (7.5, "7½")])
def test_points_are_written_in_halves(points, written):
    assert number(points) == written


def test_a_notebook_that_runs_by_itself_says_the_same_every_time():
    cells = [
        f"import dpviz as dp\nboard = dp.scoreboard('cards')\nboard.predict('1', {SENTENCE!r}, {OPTIONS!r})",
        f"board.cards['1'].reveal({RIGHT!r})",
        "board",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3", store_widget_state=False).execute()
    said = [cell.outputs[0]["data"]["text/plain"] for cell in notebook.cells]
    assert said == [
        f"1. {SENTENCE} (no guess yet)",
        f"1. Measured: {RIGHT}.",
        "cards: 1 card, 1 decided by runs, 0 of 0 points",
    ]


def test_evidence_of_a_card_is_drawn_and_its_numbers_stand_where_no_figure_can(shown):
    board = scoreboard("cards")
    card = board.predict("1", SENTENCE, OPTIONS)
    card.reveal(RIGHT, evidence=[Evidence(measured={"B = 1": 1.5, "B = 8": 1.5}, unit="P"), "a table"])
    assert shown[0].layout.title.text == "<b>Computed: 1.5, 1.5 P.</b>" and shown[1:] == ["a table", card._second]
    assert repr(card._second) == f"1. Computed: {RIGHT} (1.5, 1.5 P)."
    assert "1.5, 1.5 P" not in board._table.value
    card._second._button.click()
    assert "1.5, 1.5 P" in board._table.value


def test_what_a_formula_decided_is_not_called_measured(shown):
    board = scoreboard("cards")
    by = {
        "formula": {"evidence": Evidence(measured={"k": 1.0}, unit="P")},
        "formula beside bars of runs": {"evidence": "a figure", "computed": True},
        "run": {"evidence": "a table"},
    }
    for name, how in by.items():
        card = board.predict(name, SENTENCE, OPTIONS)
        card.reveal(RIGHT, **how)
        word, other = ("Measured", "Computed") if name == "run" else ("Computed", "Measured")
        assert f"{word}: {RIGHT}" in repr(card._second) and other not in repr(card._second)
        card._second._button.click()
        assert f"<b>{word}: {RIGHT}.</b>" in card._second._told.value
    assert repr(board) == "cards: 3 cards, 1 decided by runs, 2 by a formula, 0 of 3 points"


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda board: scoreboard(3), "the name of a scoreboard is 3, but it must be a text. Write it in quotes."),
        (lambda board: board.predict(1, SENTENCE, OPTIONS), "the name of a card is 1, but it must be a text"),
        (lambda board: board.predict("1", 5, OPTIONS), "give the question as a text"),
        (lambda board: board.predict("1", SENTENCE, 5), "give the question as a text, and its options as a list"),
        (lambda board: board.predict("1", SENTENCE, ["a", "a"]), "there must be two or more, each different"),
    ],
)
def test_a_card_that_cannot_be_asked_is_refused_with_a_sentence_and_not_kept(shown, ask, sentence):
    board = scoreboard("cards")
    with pytest.raises(ValueError, match=sentence):
        ask(board)
    played(board, "good", first=RIGHT, second=RIGHT)
    assert list(board.cards) == ["good"] and scoreboard("cards") is board
