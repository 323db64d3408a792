"""Every command and every line of Python in README and docs/how-to is executed, in the order it stands there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.checkpoint_writer import write_google_folder

import bertkit
from bertkit.stories import stories, topics

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and content of each fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with what the pages speak of: a corpus, texts, a Google checkpoint."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "stories.txt").write_text("\n\n".join(stories(100)))
    (tmp_path / "texts.txt").write_text("\n".join(stories(1)))
    rows = ["review,stars", *(f'"{text}",{label}' for text, label in topics(120))]
    (tmp_path / "reviews.csv").write_text("\n".join(rows) + "\n")
    tags = [
        [f"{word.strip('.')} {'B-PLACE' if word.strip('.').endswith('ford') else 'O'}" for word in text.split()]
        for text in stories(60)
    ]
    (tmp_path / "tags.conll").write_text("\n\n".join("\n".join(lines) for lines in tags) + "\n")
    write_google_folder(tmp_path / "uncased_L-2_H-8_A-2")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_runs(page, desk):
    assert blocks(page)
    if page.name in ("finetune.md", "domain.md"):  # goes on from a model that other pages made
        words = sorted(
            {word for text, _ in topics(120) for word in text.lower().replace(".", " .").split()} | {"bread", "sells"}
        )
        tokenizer = bertkit.Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words], cased=False)
        bertkit.create("tiny", tokenizer, positions=128).save(desk / "run" / "model")
    for language, content in blocks(page):
        if language == "python":
            exec(compile(content, str(page), "exec"), {})
        else:
            assert language == "sh", f"{page}: a block of {language}"
            for line in content.splitlines():
                run(shlex.split(line, comments=True))


def run(words: list[str]) -> None:
    if words[:1] == ["bertkit"]:
        done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    elif words:
        assert words[0] == "make", words
        subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True)


def test_links_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"
