"""Keep a fabric tuned: detect changed links, plan for what is left, compare and publish new tables."""
