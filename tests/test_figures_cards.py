"""A card's picture: what was measured, what would have been, and nothing that tells the verdict."""

import pytest
from figure_checks import assert_redrawn_as_made_anew, smallest_text
from made_up import equivalence_run

from dpviz.figures import cards
from dpviz.figures.cards import Evidence

BYTES = {"k = 1": 16.0, "k = 2": 16.0, "k = 4": 16.0004}
SMALLER = Evidence(measured=BYTES, other={"k = 2": 8, "k = 4": 4}, unit="bytes a parameter")
FITS = Evidence(measured={"DP": 208, "ZeRO-1": 71.5}, unit="GB", limit=80, limit_called="a card of 80 GB")


def drawn(evidence):
    figure = cards.make()
    verdict = cards.draw(figure, evidence)
    return {trace.name: trace for trace in figure.data}, figure, verdict


def numbers(figure):
    return [(note.x, note.y, note.text) for note in figure.layout.annotations if note.xref == "x"]


def test_both_bars_of_a_case_stand_side_by_side_with_their_numbers():
    traces, figure, verdict = drawn(SMALLER)
    assert traces["measured"].y == (16.0, 16.0, 16.0004)
    assert (traces["other"].x, traces["other"].y) == ((1, 2), (8, 4))
    assert [text for *_, text in numbers(figure)] == ["16", "16", "16", "8", "4"]
    assert [round(x, 3) for x, *_ in numbers(figure)] == [-0.185, 0.815, 1.815, 1.185, 2.185]  # each over its bar
    assert traces["measured"].offset + cards.WIDTH < 0 < traces["other"].offset
    assert traces["other"].marker.pattern.shape == "/"  # not by colour alone
    assert figure.layout.xaxis.ticktext == ("k = 1", "k = 2", "k = 4")
    assert figure.layout.yaxis.range[1] > 16 and figure.layout.yaxis.title.text == "bytes a parameter"
    assert "if the sentence were true" in figure.layout.annotations[0].text
    assert (verdict.text, verdict.good) == ("16, 16, 16 bytes a parameter", None)


def test_a_limit_is_a_line_behind_the_numbers():
    traces, figure, _ = drawn(FITS)
    assert traces["limit"].y == (80, 80) and "a card of 80 GB" in figure.layout.annotations[0].text
    assert numbers(figure) == [(0, 208, "208"), (1, 71.5, "71.5")]
    assert {note.bgcolor for note in figure.layout.annotations[1:]} == {cards.VEIL}
    assert traces["measured"].offset == -cards.WIDTH / 2 and traces["other"].y == ()
    assert "if the sentence" not in figure.layout.annotations[0].text


def test_what_no_rank_measured_is_called_computed():
    run = equivalence_run(4)
    measured = cards.show(Evidence(measured=BYTES, unit="bytes", runs=[run])).layout.title
    assert measured.text == "<b>Measured: 16, 16, 16 bytes.</b>" and "4 ranks" in measured.subtitle.text
    computed = cards.show(FITS).layout.title
    assert computed.text == "<b>Computed: 208, 71.5 GB.</b>" and computed.subtitle.text == "computed: no rank ran"


def test_the_cases_of_runs_are_what_a_function_makes_of_each():
    runs = {"k = 2": equivalence_run(2), "k = 4": equivalence_run(4)}
    evidence = Evidence.of(runs, lambda run: len(run.results), other={"k = 4": 1}, unit="ranks")
    assert (evidence.measured, evidence.other) == ({"k = 2": 2, "k = 4": 4}, {"k = 4": 1})
    assert cards.show(evidence).layout.title.subtitle.text.startswith("2 / 4 ranks")


def test_a_case_may_have_two_lines():
    traces, figure, _ = drawn(Evidence(measured={"DDP\neach time": 6}, unit="P"))
    assert figure.layout.xaxis.ticktext == ("DDP<br>each time",)
    assert traces["measured"].hovertext == ("<b>DDP each time</b><br>computed: 6 P",)


@pytest.mark.parametrize(
    "value, written", [(0, "0"), (1.500042, "1.5"), (26.25, "26.25"), (208.02, "208"), (12345.6, "12,346")]
)
def test_numbers_have_four_digits(value, written):
    assert cards.short(value) == written


def test_what_cannot_be_drawn_is_refused_with_a_sentence():
    with pytest.raises(ValueError, match="0 cases were given, but a card shows 1 to 8"):
        Evidence(measured={}, unit="P")
    with pytest.raises(ValueError, match="'k = 8' was not measured. Give `other` only for"):
        Evidence(measured=BYTES, other={"k = 8": 2}, unit="P")
    with pytest.raises(ValueError, match="'K' is nan, but a bar needs a number, 0 or more"):
        Evidence(measured={"K": float("nan")}, unit="P")
    for value in (None, "1", [1.0], 1j):
        with pytest.raises(ValueError, match="'a' is .*, but a bar needs a number, 0 or more"):
            Evidence(measured={"a": value}, unit="P")
    with pytest.raises(ValueError, match=r"other is \[1\], but it must be a dict with a number for each case"):
        Evidence(measured={"a": 1}, other=[1], unit="P")


def test_text_is_large_enough_and_a_figure_is_drawn_again_as_made_anew():
    assert smallest_text(cards.show(SMALLER)) >= 12
    assert_redrawn_as_made_anew(cards, [SMALLER, FITS, SMALLER])
