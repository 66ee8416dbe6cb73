"""Database of base graphs, which are small networks to build larger ones from. Tests check the stored claims."""
