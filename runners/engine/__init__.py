"""The engine: a native library that executes programs. All runners that move real data use it."""
