"""How runs are measured by any runner: when repetitions suffice, and what their times show."""
