"""Configs: one declaration, and every wrong value a sentence."""

import dataclasses
import subprocess
import sys

import pytest

from dpviz import questions
from dpviz.questions.base import check_world_size, fields_of, parse
from dpviz.questions.equivalence import Config


def test_every_question_has_a_config_with_checked_defaults_and_help():
    for name in questions.QUESTIONS:
        config_class = questions.config_class(name)
        config_class()
        for field in fields_of(config_class):
            assert field.help and field.allowed()
            field.check(field.default)


def test_every_question_has_its_experiment():
    from dpviz.ranks import travel

    for name, (reference, question) in questions.QUESTIONS.items():
        assert callable(travel.resolve(reference)), name
        assert question.endswith("?")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("accumulation_steps", 0),
        ("accumulation_steps", 2.0),
        ("accumulation_steps", True),
        ("average", 1),
        ("dtype", "float8"),
        ("lr", float("inf")),
        ("lr", "0.1"),
    ],
)
def test_a_wrong_value_is_a_sentence(field, value):
    with pytest.raises(ValueError, match=rf"^{field} is .*, but it must be .*\.$|Did you mean"):
        Config(**{field: value})


def test_replace_checks_again():
    with pytest.raises(ValueError, match="accumulation_steps is -1"):
        dataclasses.replace(Config(), accumulation_steps=-1)


def test_text_becomes_values():
    config = parse(Config, {"accumulation_steps": "4", "average": "False", "lr": "1e-2", "dtype": "float64"})
    assert (config.accumulation_steps, config.average, config.lr, config.dtype) == (4, False, 0.01, "float64")


def test_a_list_is_read_from_text_and_kept_as_a_tuple():
    config_class = questions.config_class("all_reduce")
    assert parse(config_class, {"sizes": "4096,100"}).sizes == (4096, 100) == config_class(sizes=[4096, 100]).sizes
    for wrong in ("", "4096,", "4096/100", "1.5", "big"):
        with pytest.raises(ValueError, match="a list of whole numbers from 1 to 268435456, such as 4096,65536"):
            parse(config_class, {"sizes": wrong})


@pytest.mark.parametrize("good", [1, 32, "4"])
def test_world_sizes(good):
    assert check_world_size(good) == int(good)


def test_a_config_and_the_list_need_no_torch():
    code = (
        "import sys, dpviz.questions as q; [q.config_class(n)() for n in q.QUESTIONS]; "
        "import dpviz.ranks.launch; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
