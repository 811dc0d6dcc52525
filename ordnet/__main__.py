"""`python -m ordnet`, which is also how torchrun starts it."""

from ordnet.commands import main

if __name__ == "__main__":
    main()
