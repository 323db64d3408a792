"""The command line as a user meets it, in a process of its own."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from support.stories import stories

import bertkit

VERBS = ["demo", "vocab", "prepare", "pretrain", "fill", "embed", "features", "next", "convert", "info"]


def run(*arguments, code=0, stdin=None):
    command = [sys.executable, "-m", "bertkit", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, input=stdin, env=os.environ | {"COLUMNS": "120"})
    assert done.returncode == code, done.stderr or done.stdout
    return done


def complaint(*arguments, **options):
    """The one line that a refused command prints."""
    done = run(*arguments, code=2, **options)
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("bertkit: ")
    return lines[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    import bertkit

    path = tmp_path_factory.mktemp("cli") / "model"
    bertkit.create("tiny", tokenizer, seed=1, positions=64).save(path)
    return path


def test_help_lists_the_verbs_and_does_not_import_torch():
    assert all(verb in run("--help").stdout for verb in VERBS)
    code = "import sys, bertkit.cli as c; sys.argv = ['bertkit', '--help']\n"
    code += "try: c.main()\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert run("--version").stdout.startswith("bertkit ")


def test_shells_complete_verbs_and_options():
    for typed, expected in (("bertkit pre", {"prepare", "pretrain", "predict"}), ("bertkit finetune --pai", {"--pair"})):
        asked = {"_BERTKIT_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        done = subprocess.run([sys.executable, "-m", "bertkit"], env=os.environ | asked, capture_output=True, text=True)
        assert set(done.stdout.split()) == expected


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb):
    assert f"Example: bertkit {verb}" in " ".join(run(verb, "--help").stdout.split())


def test_vocab(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n\n".join(stories(100)))
    facts = json.loads(run("vocab", tmp_path / "corpus.txt", "--size", 300, "--out", tmp_path / "t", "--json").stdout)
    assert facts["documents"] == 100
    assert facts["pieces"] <= 300
    assert (tmp_path / "t" / "tokenizer.json").exists()
    assert (
        "distinct words in 100 documents"
        in run("vocab", tmp_path / "corpus.txt", "--size", 300, "--out", tmp_path / "t").stdout
    )


def test_bad_corpora_write_nothing(tmp_path):
    (tmp_path / "corpus.txt").write_bytes(b"fine words here\n\nbad \xff\n")
    assert "corpus.txt:3: byte 0xff" in complaint("vocab", tmp_path / "corpus.txt", "--out", tmp_path / "t")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt"]
    assert (
        "1 unusable lines skipped"
        in run("vocab", tmp_path / "corpus.txt", "--size", 60, "--out", tmp_path / "t", "--bad", "skip").stdout
    )
    assert "too long" in complaint("vocab", tmp_path / "corpus.txt", "--max-line", 10, "--out", tmp_path / "u")


def test_fill_shows_byte_level_pieces_as_they_read(tmp_path):
    (tmp_path / "a.txt").write_text("Мара читает книгу. " * 50)
    tokenizer = bertkit.learn_vocabulary([tmp_path / "a.txt"], 400, tmp_path / "t", kind="bpe").tokenizer
    bertkit.create("tiny", tokenizer).save(tmp_path / "m")
    told = run("fill", "Мара [MASK]", "-m", tmp_path / "m", "--top", len(tokenizer)).stdout
    assert " книгу " in told and "Ġ" not in told


def test_fill(folder):
    assert "mara is a [MASK]" in run("fill", "mara is a [MASK]", "-m", folder).stdout
    answer = json.loads(run("fill", "a [MASK] b [MASK]", "[MASK]", "-m", folder, "--top", 2, "--json").stdout)
    assert [len(one["masks"]) for one in answer] == [2, 1]
    assert set(answer[0]["masks"][0][0]) == {"piece", "probability"}


def test_embed(folder, tmp_path):
    assert "2 × 128 numbers" in run("embed", "mara is", "a baker", "-m", folder).stdout
    vectors = json.loads(run("embed", "mara is", "-m", folder, "--json").stdout)["vectors"]
    (tmp_path / "texts").write_text("mara is\na baker\n")
    run("embed", "--file", tmp_path / "texts", "-m", folder, "--out", tmp_path / "v.npy")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy")[:1], vectors, atol=1e-5)
    assert "2 × 128" in run("embed", "--file", "-", "-m", folder, stdin="one\ntwo\n").stdout


def test_features(folder, tmp_path):
    run("features", "mara is", "a baker in", "-m", folder, "--layers", "-1,0", "--out", tmp_path / "f.npz")
    found = np.load(tmp_path / "f.npz")
    assert found["boundaries"].tolist() == [0, 4, 9]
    assert found["vectors"].shape == (2, 9, 128)
    assert found["pieces"][:2].tolist() == ["[CLS]", "mara"]
    assert "4 pieces × 1 layers × 128" in run("features", "mara is", "-m", folder).stdout
    assert json.loads(run("features", "mara is", "-m", folder, "--json").stdout)[0]["pieces"][1] == "mara"


def test_next(folder):
    told = run("next", "mara is", "a baker", "-m", folder).stdout
    chance = json.loads(run("next", "mara is", "a baker", "-m", folder, "--json").stdout)["probability"]
    expected = f"B follows A: {chance:.1%}" if chance >= 0.5 else f"B does not follow A: {1 - chance:.1%}"
    assert 0 < chance < 1 and told.strip() == expected


def test_convert_and_info(folder, tmp_path):
    assert "parameters → " in run("convert", folder, tmp_path / "m").stdout
    assert "layers       2" in run("info", tmp_path / "m").stdout
    assert (
        json.loads(run("info", tmp_path / "m", "--json").stdout)["parameters"]
        == json.loads(run("info", folder, "--json").stdout)["parameters"]
    )
    run("convert", folder, tmp_path / "half", "--half")
    sizes = [(path / "model.safetensors").stat().st_size for path in (tmp_path / "half", folder)]
    assert sizes[0] < 0.51 * sizes[1]


def test_what_half_cannot_hold_is_refused(folder, tmp_path):
    import bertkit

    model = bertkit.load(folder, device="cpu")
    model.network.masked.bias.data[3] = 1e5
    model.save(tmp_path / "m")
    assert "cls.predictions.bias holds 100,000; fp16" in complaint("convert", tmp_path / "m", tmp_path / "half", "--half")
    assert not (tmp_path / "half").exists()


def test_prepare_and_pretrain(tmp_path, tokenizer):
    (tmp_path / "corpus.txt").write_text("\n\n".join(stories(60)))
    tokenizer.save(tmp_path / "t")
    arguments = ("prepare", tmp_path / "corpus.txt", "--tokenizer", tmp_path / "t", "--out", tmp_path / "s")
    assert "60 documents, " in run(*arguments).stdout
    assert json.loads(run(*arguments, "--json").stdout)["documents"] == 60
    assert "checksums    right" in run("info", tmp_path / "s").stdout
    (tmp_path / "thai.txt").write_text("ฉันรักแมว " * 100)
    foreign = run("prepare", tmp_path / "thai.txt", "--tokenizer", tmp_path / "t", "--out", tmp_path / "f")
    assert "100.00% of the tokens are unknown to the tokenizer" in foreign.stdout
    train = ("pretrain", tmp_path / "s", "--recipe", "demo", "--out", tmp_path / "r", "--device", "cpu", "--set", "steps=2")
    assert "held_out_loss" in json.loads(run(*train, "--json").stdout)
    assert "held out loss" in run(*train).stdout
    assert "recipe.steps: 2 → 3" in complaint(*train[:-1], "steps=3")
    assert "no setting 'stepz' (did you mean" in complaint(*train[:-1], "stepz=3")
    assert "no finished store here" in complaint("pretrain", tmp_path / "nowhere", "--out", tmp_path / "q")
    assert not (tmp_path / "q").exists()


def test_refusals_are_one_line_with_exit_code_2(folder, tmp_path):
    assert "no [MASK] in 'x'" in complaint("fill", "x", "-m", folder)
    assert "text 1 is empty" in complaint("embed", "", "-m", folder)
    assert "text 1 has 102 pieces" in complaint("embed", "a " * 100, "-m", folder)
    assert "Missing option '--out'" in complaint("prepare", "x", "--tokenizer", "t")
    assert "Did you mean 'fill'" in complaint("fil", "x")
    assert "no such model folder" in complaint("info", tmp_path / "nowhere")
    assert "give texts, or --file" in complaint("embed", "-m", folder)
    assert "holds no text" in complaint("embed", "--file", "-", "-m", folder, stdin="\n")
    assert "No such file" in complaint("embed", "--file", tmp_path / "nowhere", "-m", folder)
    assert "expected whole numbers" in complaint("features", "a", "-m", folder, "--layers", "x")
    assert "ends in .npy" in complaint("embed", "a", "-m", folder, "--out", tmp_path / "v.txt")
    assert "exists and is not a folder with" in complaint("convert", folder, tmp_path.parent)
    assert list(tmp_path.iterdir()) == []


def test_help_that_was_not_asked_for_has_no_empty_line_behind():
    for verb in ([], ["data"]):
        done = run(*verb, code=2)
        assert (done.stdout.split()[0], done.stderr) == ("Usage:", "")


def test_without_torch_it_says_what_to_install(folder):
    code = "import sys; sys.modules['torch'] = None; import bertkit.cli as c; c.main()"
    done = subprocess.run([sys.executable, "-c", code, "fill", "x", "-m", folder], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "bertkit: this verb needs torch: pip install torch\n"


def test_a_byte_order_mark_is_no_part_of_a_text(folder, tmp_path):
    (tmp_path / "texts").write_text("\ufeffmara is\nbaker", encoding="utf-8")
    for place, stdin in ((tmp_path / "texts", None), ("-", "\ufeffmara is\nbaker")):
        told = json.loads(run("features", "--file", place, "-m", folder, "--json", stdin=stdin).stdout)
        assert told[0]["pieces"][1] == "mara"


def test_debug_shows_the_traceback(folder):
    done = run("--debug", "fill", "x", "-m", folder, code=1)
    assert "Traceback" in done.stderr
