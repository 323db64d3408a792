"""`python -m bertkit`"""

from bertkit.cli import main

main()
