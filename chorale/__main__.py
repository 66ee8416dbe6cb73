"""The command `chorale`, also as `python -m chorale`."""

from chorale.tuner.cli.main import main

if __name__ == "__main__":
    main()
