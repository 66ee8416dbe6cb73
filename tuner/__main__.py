"""`python -m tuner` does what `chorale` does."""

from tuner.cli.main import main

if __name__ == "__main__":
    main()
