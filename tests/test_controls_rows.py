"""The control of a field of kind rows: a slider a number, rank by rank, and a panel whose world size it implies."""

import importlib

import pytest
from made_up import Ranks, equivalence_run

from dpviz.figures import equivalence
from dpviz.figures.style import rank_colour
from dpviz.questions import clipping, unequal
from dpviz.widgets.controls import changed, make_controls, shown

panels = importlib.import_module("dpviz.panel")
CONFIG = unequal.Config(tokens=((10, 30), (60, 100), (5, 7)))


@pytest.fixture
def control():
    return make_controls(CONFIG, {"tokens": (1, 512)}, world_size=3)["tokens"]


def test_there_is_a_slider_for_each_number_in_the_colour_of_its_rank(control):
    assert [[slider.value for slider in row] for row in control.sliders] == [[10, 30], [60, 100], [5, 7]]
    assert {(slider.min, slider.max) for row in control.sliders for slider in row} == {(1, 512)}
    assert not any(slider.continuous_update for row in control.sliders for slider in row)
    assert [row[1].style.handle_color for row in control.sliders] == [rank_colour(rank) for rank in range(3)]


def test_a_slider_that_is_moved_changes_the_value_once(control):
    said = []
    control.observe(lambda change: said.append(change["new"]), "value")
    control.sliders[1][0].value = 64
    assert control.value == ((10, 30), (64, 100), (5, 7)) and said == [control.value]


def test_a_value_that_is_set_moves_all_sliders_and_is_said_once(control):
    said = []
    control.observe(lambda change: said.append(change["new"]), "value")
    control.value = ((1, 2), (3, 4), (5, 6))
    assert [[slider.value for slider in row] for row in control.sliders] == [[1, 2], [3, 4], [5, 6]]
    assert said == [((1, 2), (3, 4), (5, 6))]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (((1, 2), (3, 4)), "rows in the shape n,n/n,n/n,n"),
        (((1, 2), (3, 4), (5, 600)), "from 1 to 512"),
        (((1, 2), (3, 4), (5, 6.5)), "whole numbers"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_change_nothing(control, rows, sentence):
    with pytest.raises(ValueError, match=sentence):
        control.value = rows
    assert control.value == CONFIG.tokens
    assert [[slider.value for slider in row] for row in control.sliders] == [[10, 30], [60, 100], [5, 7]]


def test_a_range_that_the_field_does_not_have_is_refused():
    with pytest.raises(ValueError, match="must lie within 0 to 4096"):
        make_controls(CONFIG, {"tokens": (0, 5000)}, world_size=3)
    with pytest.raises(ValueError, match="from 20 to 512"):
        make_controls(CONFIG, {"tokens": (20, 512)}, world_size=3)


def test_numbers_with_a_fraction_get_steps_that_are_powers_of_ten():
    config = clipping.Config(gradients=((3, 0), (-3, 0.4)))
    control = make_controls(config, {"gradients": (-4, 4)}, world_size=2)["gradients"]
    assert control.sliders[0][0].step == pytest.approx(0.1)
    control.sliders[0][1].value = 1.5
    assert changed(config, {"gradients": control.value}).gradients == ((3.0, 1.5), (-3.0, 0.4))


def test_the_value_goes_into_the_config_and_is_written_as_on_the_command_line(control):
    assert changed(CONFIG, {"tokens": ((1, 2), (3, 4), (5, 6))}).tokens == ((1, 2), (3, 4), (5, 6))
    assert shown({"tokens": control.value}) == "tokens=10,30/60,100/5,7"


def test_a_page_that_says_it_is_here_gets_every_slider_again(control, monkeypatch):
    sent = []
    for row in control.sliders:
        for slider in row:
            monkeypatch.setattr(type(slider), "send_state", lambda self, key=None: sent.append(self.value))
    control.send_state()
    assert sent == [10, 30, 60, 100, 5, 7]


def test_a_panel_needs_no_world_size_where_the_rows_imply_it(monkeypatch):
    ranks = Ranks()
    ranks.answer = equivalence_run(3)  # only the launch is looked at
    monkeypatch.setattr(panels, "start", ranks.start)
    panel = panels.panel(lambda config: None, CONFIG, figure=equivalence, controls={"tokens": (1, 512)})
    assert repr(panel).startswith("tokens=10,30/60,100/5,7: ")
    panel.controls["tokens"].sliders[2][0].value = 50
    panel._newest.wait()
    assert [job.world_size for job in ranks.jobs] == [3, 3]
    assert ranks.jobs[-1].config.tokens == ((10, 30), (60, 100), (50, 7))
    assert repr(panel).startswith("tokens=10,30/60,100/50,7: ")
