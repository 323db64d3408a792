from bertkit.train.log import Log, read_metrics


def test_rows_after_the_step_and_a_cut_off_row_are_dropped(tmp_path):
    with Log(tmp_path, quiet=True) as log:
        for step in (1, 2, 3):
            log.write(step=step, loss=1 / step)
    with open(tmp_path / "metrics.jsonl", "a") as stream:
        stream.write('{"step": 4, "lo')
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3]
    with Log(tmp_path, step=2, quiet=True) as log:
        log.write(step=3, loss=0.0)
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}, {"step": 3, "loss": 0.0}]


def test_lines_are_shown_unless_quiet(tmp_path, capsys):
    with Log(tmp_path) as log:
        log.show("step 1")
    assert capsys.readouterr().err == "step 1\n"
    with Log(tmp_path, quiet=True) as log:
        log.show("step 1")
    assert capsys.readouterr().err == ""


def test_other_ranks_write_nothing(tmp_path):
    with Log(tmp_path, silent=True) as log:
        log.write(step=1)
        log.show("step 1")
    assert list(tmp_path.iterdir()) == []
