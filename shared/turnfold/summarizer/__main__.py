"""`python -m turnfold.summarizer [--preload]`: the child that writes summaries for its parent."""

import sys

from turnfold.summarizer.child import run

if __name__ == "__main__":
    run(preload="--preload" in sys.argv[1:])
