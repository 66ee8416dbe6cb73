"""Keep a fabric tuned: detect changed links, plan for the remaining network, and compare and publish new tables."""
