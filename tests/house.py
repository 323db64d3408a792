"""Prints the package's size and fails when it has outgrown its bounds: one person reads it in an afternoon."""

import sys
from pathlib import Path

MAX_PACKAGE, MAX_FILE, MAX_LINE = 8000, 400, 125

package = Path(__file__).parents[1] / "src" / "bertkit"
sizes = {file.relative_to(package).as_posix(): len(file.read_text().splitlines()) for file in sorted(package.rglob("*.py"))}
total = sum(sizes.values())
print(f"bertkit: {len(sizes)} files, {total:,} lines (at most {MAX_PACKAGE:,})")
if large := {name: size for name, size in sizes.items() if size > MAX_FILE}:
    print(f"files over {MAX_FILE} lines, which usually own two things: {large}")
sys.exit(bool(large) or total > MAX_PACKAGE)
