"""How runs are measured, whatever runs them: when there are enough repetitions, and what their times say."""
