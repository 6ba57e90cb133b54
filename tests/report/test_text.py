"""How sections look as text: aligned where they fit, complete where they do not."""

from __future__ import annotations

import io

from torchrepro.nouns.sections import Code, Facts, Section, Table, notes
from torchrepro.report.text import lines_of_sections, print_section


def shown(section: Section, width: int | None = 80) -> list[str]:
    return [line.text for line in lines_of_sections([section], width)]


def test_columns_are_aligned_numbers_to_the_right_and_the_culprit_is_marked() -> None:
    table = Table.of(("op", "error"), [("erf", "1e-08"), ("add", "12")], marked=[1])
    assert shown(Section("ops", (table,))) == ["ops", "  op   error", "  erf  1e-08", "> add     12"]


def test_rows_that_do_not_fit_are_written_as_sentences_with_nothing_left_out() -> None:
    table = Table.of(("where", "eager", "compiled"), [("out[0]", "1" * 50, "2" * 50)])
    text = " ".join(shown(Section("values", (table,))))
    assert "out[0]:" in text
    assert f"eager {'1' * 50}, compiled" in text
    assert "2" * 50 in text
    assert max(map(len, shown(Section("values", (table,))))) <= 80


def test_columns_that_are_not_needed_go_first() -> None:
    wide = Table(("node", "op", "module"), (("a", "b", "m" * 90),), needed=2)
    assert shown(Section("graph", (wide,))) == ["graph", "  node  op", "  a     b"]
    assert "m" * 90 in shown(Section("graph", (wide,)), None)[-1], "a command does not wrap"


def test_on_a_terminal_the_last_column_is_wrapped_and_a_path_in_it_stays_whole() -> None:
    path = f"/{'p' * 60}"
    table = Table.of(("status", "what was seen"), [("ok", "word " * 20), ("missing", path)])
    lines = [line.text for line in lines_of_sections([Section("t", (table,))], None, columns=60)]
    assert max(len(line) for line in lines if path not in line) <= 60
    assert any(line.startswith(" " * 11 + "word") for line in lines)
    assert sum(line.count("word") for line in lines) == 20
    assert f"  missing  {path}" in lines


def test_empty_columns_and_parts_are_left_out_and_what_is_not_shown_is_counted() -> None:
    table = Table.of(("a", "b"), [("1", ""), ("2", ""), ("3", "")], limit=2)
    assert table.head == ("a",)
    parts = (Facts.of([("x", ""), ("y", 1)]), table, Code(""), notes(["", "n"]))
    assert shown(Section("t", parts))[1:] == [
        "  y            1",
        "  a",
        "  1",
        "  2",
        "  ... and 1 more",
        "  note: n",
    ]


def test_a_command_prints_no_control_characters() -> None:
    file = io.StringIO()
    print_section(Section("\x1b[31mred", (notes(["a\r\nb\x07"]),)), file)
    assert "\x1b" not in file.getvalue()
    assert file.getvalue().splitlines()[1] == "  note: a b\N{REPLACEMENT CHARACTER}"
