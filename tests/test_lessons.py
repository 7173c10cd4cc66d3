"""What the lessons promise: what is shown is what runs, the shape is kept, outputs are there (nbval compares them)."""

import ast
import importlib
import inspect
import re
import statistics
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest

LESSONS = Path(__file__).resolve().parent.parent / "lessons"
GLOSSARY = LESSONS / "glossary.md"
PATHS = sorted(LESSONS.glob("*.ipynb"))
START = "00_start_here"
TAGS = re.compile(r"raises-exception|nbval-ignore-output|source:dpviz(\.\w+)+")
WIDTH, LONGEST, MEDIAN = 100, 25, 6
SHAPES = {START: {"words": (700, 1200), "code": (12, 25)}}
SHAPE = {"words": (1200, 2000), "code": (15, 25)}
SECTIONS = ["Exercises", "Recap", "Answers", "On a cluster", "Sources"]
ROUNDS = ["Round 1", "Round 2", "Round 3", "The real thing"]


@pytest.fixture(params=PATHS, ids=[path.stem for path in PATHS])
def lesson(request):
    return Lesson(request.param)


class Lesson:
    """A notebook, as the checks below look at it."""

    def __init__(self, path):
        self.name = path.stem
        self.notebook = nbformat.read(path, as_version=4)
        self.code = [cell for cell in self.notebook.cells if cell.cell_type == "code"]
        self.markdown = [cell.source for cell in self.notebook.cells if cell.cell_type == "markdown"]
        self.prose = prose("\n\n".join(self.markdown))
        self.headings = re.findall(r"^## (.+)$", "\n".join(self.markdown), flags=re.MULTILINE)

    def calls(self):
        trees = (node for cell in self.code for node in ast.walk(tree(cell.source)))
        return [node for node in trees if isinstance(node, ast.Call)]


def prose(markdown):
    """The words a reader reads: no code, no formulas, no addresses, no markup."""
    text = re.sub(r"```.*?```|^ {4}.*?$", " ", markdown, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$|`[^`\n]+`|<[^>\n]+>|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    return text


def words(text):
    return len(re.findall(r"[A-Za-z][A-Za-z'’-]*|\d[\d.,]*", text))


def tree(source):
    """The cell's syntax tree; a line for the shell counts as an expression, as it prints."""
    lines = ["'shell'" if line.startswith(("!", "%")) else line for line in source.splitlines()]
    return ast.parse("\n".join(lines))


def displays(source):
    """Whether the cell shows something: its last line is a value, or it prints or reveals."""
    body = tree(source)
    called = {name(node.func) for node in ast.walk(body) if isinstance(node, ast.Call)}
    return bool({"print", "display", "reveal"} & called) or (bool(body.body) and isinstance(body.body[-1], ast.Expr))


def name(function):
    return getattr(function, "attr", getattr(function, "id", ""))


def tags(cell):
    return cell.metadata.get("tags", [])


def definition(source, called):
    """The one definition of that name in the source, as text that neither comments, layout nor docstrings change."""
    found = [node for node in ast.parse(source).body if getattr(node, "name", None) == called]
    assert len(found) == 1, f"{len(found)} definitions of {called}"
    for node in ast.walk(found[0]):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(found[0], indent=1)


# -- what is shown is what runs


def test_a_shown_definition_is_that_of_the_package(lesson):
    for cell in lesson.code:
        for dotted in (tag.removeprefix("source:") for tag in tags(cell) if tag.startswith("source:")):
            module, _, called = dotted.rpartition(".")
            package = inspect.getsource(importlib.import_module(module))
            assert definition(cell.source, called) == definition(package, called), f"{cell.id} and {dotted} differ"


def test_what_a_lesson_shows_it_does_not_import_as_well(lesson):
    shown = {tag.rpartition(".")[2] for cell in lesson.code for tag in tags(cell) if tag.startswith("source:")}
    imports = (node for cell in lesson.code for node in ast.walk(tree(cell.source)) if isinstance(node, ast.ImportFrom))
    assert shown.isdisjoint(alias.asname or alias.name for node in imports for alias in node.names)


def test_the_first_full_lesson_shows_its_loop_and_its_all_reduce():
    shown = {tag for cell in Lesson(LESSONS / "01_gradient_equivalence.ipynb").code for tag in tags(cell)}
    assert {
        "source:dpviz.experiments.equivalence.experiment",
        "source:dpviz.parallel.ddp.all_reduce_gradients",
        "source:dpviz.parallel.ddp.broadcast_parameters",
    } <= shown


# -- the shape of a lesson


def test_the_title_is_a_question_and_the_promise_has_three_verbs_and_its_minutes(lesson):
    title, opening = lesson.markdown[0].split("\n", 1)
    assert title.startswith("# ") and "?" in title
    promise = re.search(r"\*\*You will be able to\*\* \(\d+ minutes\)\n\n((?:- .+\n)+)", opening + "\n")
    assert promise, "no promise with its minutes"
    assert [line[:4] for line in promise[1].splitlines()] == ["- **"] * 3


def test_the_set_up_is_at_most_five_lines_of_imports(lesson):
    body = tree(lesson.code[0].source).body
    assert len(lesson.code[0].source.splitlines()) <= 5
    assert all(isinstance(node, ast.Import | ast.ImportFrom) for node in body)


def test_the_sections_are_there_and_in_order(lesson):
    wanted = SECTIONS if lesson.name == START else ROUNDS + SECTIONS
    found = [next((i for i, one in enumerate(lesson.headings) if one.startswith(start)), None) for start in wanted]
    assert None not in found, dict(zip(wanted, found, strict=True))
    assert found == sorted(found)
    assert sum(one.startswith("Round") for one in lesson.headings) in (0, 3)


def test_exercises_modify_make_and_break_and_each_has_a_folded_answer_with_its_check(lesson):
    exercises = next(text for text in lesson.markdown if text.startswith("## Exercises"))
    assert re.findall(r"^\d\. \*\*(\w+)\.\*\*", exercises, flags=re.MULTILINE) == ["Modify", "Make", "Break"]
    answers = [cell for cell in lesson.code if cell.id.startswith("answer-")]
    assert len(answers) == 3
    for cell in answers:
        assert cell.metadata["jupyter"]["source_hidden"] and "assert" in cell.source
    assert "\n".join(lesson.markdown).count("<details><summary>Answer") == 3


def test_the_recap_has_five_lines_and_a_table_and_the_cluster_its_torchrun_line(lesson):
    recap = next(text for text in lesson.markdown if text.startswith("## Recap"))
    assert len(re.findall(r"^- ", recap, flags=re.MULTILINE)) == 5
    assert "|---|" in recap
    assert "    torchrun " in next(text for text in lesson.markdown if text.startswith("## On a cluster"))


def test_words_cells_and_lines_are_within_their_limits(lesson):
    limits = SHAPES.get(lesson.name, SHAPE)
    lines = [len(cell.source.splitlines()) for cell in lesson.code]
    assert limits["words"][0] <= words(lesson.prose) <= limits["words"][1], words(lesson.prose)
    assert limits["code"][0] <= len(lines) <= limits["code"][1], len(lines)
    assert statistics.median(lines) <= MEDIAN
    assert max(lines) <= LONGEST
    assert max(len(line) for cell in lesson.code for line in cell.source.splitlines()) <= WIDTH


def test_every_prediction_is_revealed_by_the_run_and_not_by_a_literal(lesson):
    asked = [call for call in lesson.calls() if name(call.func) == "predict"]
    revealed = [call for call in lesson.calls() if name(call.func) == "reveal"]
    assert len(asked) == len(revealed) >= 2
    assert not [call for call in revealed if isinstance(call.args[0], ast.Constant)]
    assert [call for call in lesson.calls() if name(call.func) == "panel"]


def test_the_prose_keeps_its_voice(lesson):
    assert "!" not in lesson.prose
    assert not re.search(r"\b(slave|GPU node|worker)s?\b", lesson.prose, flags=re.IGNORECASE)


# -- what is stored


def test_every_cell_was_run_from_top_to_bottom(lesson):
    assert [cell.execution_count for cell in lesson.code] == list(range(1, len(lesson.code) + 1))


def test_a_cell_that_shows_something_holds_its_output(lesson):
    # nbval runs a cell without stored outputs and compares nothing
    missing = [cell.id for cell in lesson.code if displays(cell.source) and not cell.outputs]
    assert not missing
    superfluous = [cell.id for cell in lesson.code if cell.outputs and not displays(cell.source)]
    assert superfluous in ([], ["hello"])  # where the ranks print


def test_errors_are_announced_and_announced_errors_come(lesson):
    for cell in lesson.code:
        failed = any(output.output_type == "error" for output in cell.outputs)
        assert failed == ("raises-exception" in tags(cell)), cell.id
        assert not any(output.get("name") == "stderr" for output in cell.outputs), cell.id


def test_nothing_of_one_machine_or_one_run_is_stored(lesson):
    assert "widgets" not in lesson.notebook.metadata
    assert lesson.notebook.metadata["kernelspec"]["name"] == "python3"
    checked = [cell for cell in lesson.code if "nbval-ignore-output" not in tags(cell)]
    for cell in checked:
        stored = repr(cell.outputs)
        assert "widget-view" not in stored, cell.id
        assert not re.search(r"/(tmp|home|root|Users)/|\bobject at 0x|\bPID \d+ .*text/plain", stored), cell.id


def test_tags_are_known_and_ids_are_names(lesson):
    for cell in lesson.notebook.cells:
        assert all(TAGS.fullmatch(tag) for tag in tags(cell)), tags(cell)
        assert re.fullmatch(r"[a-z][a-z]*(-[a-z0-9]+)*", cell.id), cell.id
    ids = [cell.id for cell in lesson.notebook.cells]
    assert len(set(ids)) == len(ids)


def test_links_between_lessons_lead_somewhere(lesson):
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", "\n".join(lesson.markdown)):
        assert (LESSONS / target).is_file(), target


# -- the glossary


def rows():
    table = [line for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return [row for row in cells if row[0] != "English"]


def test_every_row_of_the_glossary_has_both_languages_a_sentence_and_its_lesson():
    for row in rows():
        assert len(row) == 5, row
        english, chinese, _, sentence, built_in = row
        assert english and (re.search(r"[\u4e00-\u9fff]", chinese) or chinese == english), row
        assert sentence.endswith(".") and re.fullmatch(r"0\d|1[0-3]", built_in), row


def test_no_term_of_the_glossary_is_told_twice():
    english = sorted(row[0].lower() for row in rows())
    assert not [one for one, other in pairwise(english) if one == other]


# The course texts' own terms, section by section: those of lesson 9, then those of 9.2
TERMS = """
    全归约 数据并行 副本 模型并行副本 参数 优化器状态 激活 随机数状态 不变量 发散 采样器 数据加载器
    梯度平均 梯度求和 数学等价性 学习率调度 训练轨迹 有效 token 填充 掩码 提示 回复 结束符
    每序列等权 检查点 损失缩放 logits 层归一化 批归一化 buffer 梯度桶 重叠 暴露的通信 一阶矩 二阶矩
    偏差修正 权重衰减 广播 全局批 微批 累积 张量并行 流水线 专家并行 上下文并行 有效学习率 梯度裁剪
    全局范数 溢出 归一化分母 混合专家 路由 统计约束 系统约束 契约 并行拓扑 数据语义 batch 语义
    loss 语义 通信语义 更新语义 一致性验证 可恢复性 hash 抽样校验 补齐 启动延迟 有效带宽 拓扑
    强化学习后训练 混合精度 主权重 显存冗余 梯度噪声 线性缩放 预热 等效批 环状 归约散射 全收集
    两份模型 通信占比 通信墙 计算量 节点内 利用率 大批量陷阱 对照组 超参数 零冗余 ZeRO-1 ZeRO-2
    ZeRO-3 小消息 碎片 全分片 按需聚齐 预取 分片粒度 扁平参数 DTensor 状态字典 卸载 图书馆
    激活重计算 OOM 性能分析 墙钟 num_workers 吞吐
"""


def test_the_glossary_has_the_terms_of_the_course_and_its_symbols():
    text = GLOSSARY.read_text(encoding="utf-8")
    terms = re.findall(r"有效 token|(?:batch|loss) 语义|\S+", TERMS)
    assert not [term for term in terms if term not in text]
    symbols = ("*k*", "*K*", "*N*", "*P*", "*S*", "*B*", "θ", "η", "*m*", "*v*", "α", "β", "$M_{cap}$", "$B_{global}$")
    assert not [symbol for symbol in symbols if symbol not in text]


def test_the_glossary_has_the_terms_that_a_lesson_prints_in_bold(lesson):
    known = " ".join(row[0].lower() for row in rows())
    bold = {term.lower() for text in lesson.markdown[1:] for term in re.findall(r"(?<=[a-z] )\*\*([a-z -]+)\*\*", text)}
    assert not [term for term in bold - {"not"} if term not in known and term.removesuffix("ed") not in known]
