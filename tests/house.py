"""Prints the package's size and fails when it has outgrown its bounds: one person reads it in an afternoon."""

import ast
import sys
from pathlib import Path

MAX_CODE, MAX_FILE = 10_285, 400

package = Path(__file__).parents[1] / "src" / "bertkit"
texts = {file.relative_to(package).as_posix(): file.read_text() for file in sorted(package.rglob("*.py"))}


def code_lines(text: str) -> int:
    """Lines that are neither blank nor a comment nor part of a docstring."""
    told = set[int]()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node, clean=False) is not None
        ):
            told |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = (line.strip() for number, line in enumerate(text.splitlines(), start=1) if number not in told)
    return sum(bool(line) and not line.startswith("#") for line in lines)


code = sum(map(code_lines, texts.values()))
total = sum(len(text.splitlines()) for text in texts.values())
print(
    f"bertkit: {len(texts)} files, {code:,} lines of code (at most {MAX_CODE:,}), {total:,} with docstrings and blank lines"
)
if large := {name: size for name, text in texts.items() if (size := len(text.splitlines())) > MAX_FILE}:
    print(f"files over {MAX_FILE} lines, which usually own two things: {large}")
sys.exit(bool(large) or code > MAX_CODE)
