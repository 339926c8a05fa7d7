"""Where machine code comes from: `find.py` asks memory, the libraries of the wheel, the user's cache, the compiler."""
