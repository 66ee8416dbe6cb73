"""One question per file: what the papers printed beside what this code reaches, and measurements of our own."""
