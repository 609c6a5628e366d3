"""`python -m turnfold.cli`: the same as the command `turnfold`."""

from turnfold.cli import main

if __name__ == "__main__":
    main()
