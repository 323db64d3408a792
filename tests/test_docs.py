"""Every command and every line of Python in README and docs/how-to is executed, in the order it stands there. Recipes for a
GPU are made small; what is installed is only looked at."""

import re
import shlex
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from support.checkpoint_writer import write_google_folder
from support.stories import stories

import bertkit
from bertkit.demo import topics

ROOT = Path(__file__).parents[1]
SMALL = "--budget 1s --set compile=false --set batch_tokens=512 --set row_tokens=512 --set evaluate_examples=16"
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
def test_the_page_runs(page, desk, serving):
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
                run(shlex.split(line, comments=True), serving)


@pytest.fixture
def serving():
    """Servers that a page starts, until it ends."""
    started = list[subprocess.Popen]()
    yield started
    for server in started:
        server.kill()
        server.wait()


def run(words: list[str], serving: list[subprocess.Popen]) -> None:
    if words[:1] == ["bertkit"] and words[-1] == "&":
        serving.append(subprocess.Popen([sys.executable, "-m", *words[:-1]], stderr=subprocess.DEVNULL))
        wait_for("http://localhost:8000/ready")
    elif words[:1] == ["bertkit"]:
        words = [*words, *SMALL.split()] if "fast-small" in words else words
        done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    elif words[:1] == ["pip"]:
        quick = ["--dry-run", "--no-deps", "--no-build-isolation", "--quiet"]
        subprocess.run([sys.executable, "-m", *words, *quick], cwd=ROOT, check=True, capture_output=True)
    elif words[:1] == ["curl"]:
        assert b"paris" in subprocess.run(words, check=True, capture_output=True).stdout
    elif words:
        assert words[0] == "make", words
        subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True)


def wait_for(address: str, seconds: float = 60) -> None:
    for _ in range(int(seconds * 10)):
        try:
            urllib.request.urlopen(address).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{address} does not answer")


def test_links_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"
