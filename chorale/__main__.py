"""`python -m chorale` does what the command `chorale` does."""

from chorale.tuner.cli.main import main

if __name__ == "__main__":
    main()
