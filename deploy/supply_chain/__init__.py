"""What is installed: its hashes, its bill of materials, its licenses."""
