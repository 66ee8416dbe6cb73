"""BFB costs of expanded networks from what single nodes of their bases see, without building the networks."""
