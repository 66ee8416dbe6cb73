"""New networks from given ones, one file per expansion; `plans` reads their arguments from a spec."""
