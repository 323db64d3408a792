from bertkit.train.page import BLUE, cards, curves, draw, section, spelled, table, write_page


def test_text_is_escaped_wherever_it_stands():
    evil = "<script>&'\""
    for made in (cards({evil: evil}, {evil: evil}), table([[evil, evil, evil]], [evil]), section(evil, note=evil)):
        assert "<script" not in made
        assert "&lt;script&gt;&amp;" in made


def test_a_page_is_one_file_of_utf_8(tmp_path):
    page = write_page(tmp_path / "page.html", "títle <1>", "東京 & more", ["<p>whole</p>"], ".x { }").read_text(
        encoding="utf-8"
    )
    assert page.count("títle &lt;1&gt;") == 2
    assert "東京 &amp; more" in page
    assert "<p>whole</p>" in page
    assert ".x { }" in page
    assert "prefers-color-scheme: dark" in page
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


def test_numbers_stand_at_the_right():
    made = table([["a", "b", 3]], ("x", "y", "n"))
    assert made.count("class=number") == 2
    assert "<td>b</td><td class=number>3</td>" in made


def test_nested_settings_lie_flat():
    assert spelled({"a": {"b": {"c": 1}}, "d": [1, 2], "e": None}) == {"a.b.c": "1", "d": "1, 2", "e": "None"}


def test_plots_follow_the_mode_and_come_out_the_same_twice():
    rows = [{"step": 1, "dev_x": 0.5}, {"step": 2}]
    panels = [curves("only & one", rows, {"dev_x": BLUE, "other": BLUE}, floor=None)]
    picture = draw(panels)
    assert picture == draw(panels)
    assert picture.count("<svg") == 1
    assert "only &amp; one" in picture
    assert "var(--ink)" in picture
    assert "var(--blue)" in picture
    assert BLUE not in picture
