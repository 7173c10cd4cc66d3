"""The planner's figure: what fits on the card, what is sent, which stage is framed."""

import pytest
from figure_checks import assert_redrawn_as_made_anew

from dpviz.figures import plan as figures
from dpviz.planner import Config

OF_13B = Config(params=13e9, activations_gb=40)


def drawn(config):
    figure = figures.make()
    verdict = figures.draw(figure, config.plan())
    return {trace.name: trace for trace in figure.data}, figure, verdict


def note(figure, name):
    return next(note.text for note in figure.layout.annotations if note.name == name)


def test_bars_are_the_model_state_and_on_it_what_no_stage_divides():
    traces, figure, _ = drawn(Config(params=7e9, activations_gb=10, headroom_gb=5))
    assert traces["model state"].y == (112e9, 38.5e9, 26.25e9, 14e9)
    assert traces["activations and headroom"].y == (15e9,) * 4
    assert [note(figure, f"bar {stage}")[3:10].split(" ")[0] for stage in range(4)] == ["127", "53.5", "41.25", "29"]
    assert traces["card"].y == (80e9, 80e9) and "the card: 80 GB" in note(figure, "memory")


def test_what_does_not_fit_is_marked_twice():
    traces, figure, _ = drawn(OF_13B)
    colours = traces["model state"].marker.color
    assert colours == (figures.LOST,) * 3 + (figures.KINDS["parameters"],)
    assert ["✗ too much" in note(figure, f"bar {stage}") for stage in range(4)] == [True, True, True, False]
    assert "14 free" in note(figure, "bar 3")


@pytest.mark.parametrize(("config", "at"), [(Config(params=1e9), 0), (Config(), 1), (OF_13B, 3)])
def test_the_choice_is_framed_on_both_sides(config, at):
    _, figure, _ = drawn(config)
    assert [(shape.visible, (shape.x0 + shape.x1) / 2) for shape in figure.layout.shapes] == [(True, at)] * 2


def test_nothing_is_framed_where_nothing_fits():
    _, figure, verdict = drawn(Config(params=5e12))
    assert [shape.visible for shape in figure.layout.shapes] == [False, False]
    assert verdict.html == "<b>Nothing fits:</b> even ZeRO-3 would take 10 TB, the card has 80 GB."
    assert (verdict.text, verdict.good) == ("nothing fits", False)


def test_the_axis_moves_with_the_card_alone_and_bars_leave_through_its_top():
    for config in (Config(), OF_13B, Config(params=5e12)):
        assert drawn(config)[1].layout.yaxis.range == (0, 160e9)
    _, figure, _ = drawn(Config(params=5e12))
    label = next(note for note in figure.layout.annotations if note.name == "bar 0")
    assert label.text.startswith("<b>▲ 80 TB") and label.y < 160e9
    assert drawn(Config(memory_gb=24))[1].layout.yaxis.range == (0, 48e9)


def test_a_step_is_computing_and_sending_and_dotted_if_that_hides():
    config = Config(accumulation_steps=2, link_gbps=10)
    traces, figure, _ = drawn(config)
    stages = config.plan().stages
    assert traces["sending"].y == tuple(stage.communication_s for stage in stages)
    assert traces["computing"].y == (stages[0].compute_s,) * 4
    assert traces["all hidden"].y[::3] == tuple(stage.step_s for stage in stages)
    assert "24.5 GB" in note(figure, "bar2 0") and "73.5 GB" in note(figure, "bar2 3")
    assert figure.layout.yaxis2.range[1] > stages[3].step_exposed_s


def test_seconds_are_written_as_people_write_them():
    assert [figures._plain(number) for number in (2457.3, 0.49, 12.0, 1e6)] == ["2,460", "0.49", "12", "1,000,000"]


@pytest.mark.parametrize(
    ("config", "html", "text"),
    [
        (
            Config(),
            "<b>Take ZeRO-1:</b> 38.5 GB of 80 GB, 24.5 GB sent a step.",
            "take ZeRO-1: 38.5 GB of 80 GB, 24.5 GB a step",
        ),
        (
            OF_13B,
            "<b>Take ZeRO-3:</b> 66 GB of 80 GB, 68.25 GB sent a step, 1.5 × as much as DP.",
            "take ZeRO-3: 66 GB of 80 GB, 68.25 GB a step",
        ),
    ],
)
def test_the_verdict_is_the_choice(config, html, text):
    verdict = drawn(config)[2]
    assert (verdict.html, verdict.text, verdict.good) == (html, text, True)


def test_notes_say_why_and_what_else_there_is():
    made = Config(link_gbps=1, tokens=1000).plan()
    found = figures.notes(made)
    assert found == [made.why, *made.notes, "The global batch is 8,000 tokens."] and len(found) == 3


def test_a_shown_plan_says_that_it_is_modelled():
    figure = figures.show(Config().plan())
    assert figure.layout.title.subtitle.text == "modelled, not measured"
    assert "Take ZeRO-1" in figure.layout.title.text and "bdata" not in figure.to_json()


def test_a_plan_is_redrawn_as_made_anew():
    assert_redrawn_as_made_anew(
        figures,
        [
            config.plan()
            for config in (Config(), Config(params=5e12), OF_13B, Config(world_size=1, memory_gb=200), Config())
        ],
    )
