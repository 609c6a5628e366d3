"""`python -m turnfold.models [--preload]`: the summarizer process."""

import sys

from turnfold.models.child import run

if __name__ == "__main__":
    run(preload="--preload" in sys.argv[1:])
