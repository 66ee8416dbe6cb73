"""The engine: one native library that executes programs, for every runner that moves real bytes."""
