"""Stand-ins for what tests cannot have: GPUs, their libraries, their launchers. Nothing they print was measured."""
