"""What a node must have for a worker to run on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """Held by one worker as long as it lives.

    cpus, gpus: of the node.
    resources:  amounts of resources that the cluster's owner gave nodes by name, such as a fabric of which there is 1.
    labels:     of the node, as they must be.
    patience_s: how long to wait for a node that has all this to be free, or to come.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    patience_s: float = 30.0

    @property
    def amounts(self) -> dict[str, float]:
        """Everything that is counted, by the names that Ray gives it."""
        return {"CPU": self.cpus, "GPU": self.gpus, **self.resources}

    def fits(self, amounts: Mapping[str, float], labels: Mapping[str, str]) -> bool:
        """Whether a node with these amounts and labels has it all."""
        enough = all(amounts.get(name, 0) >= amount for name, amount in self.amounts.items())
        return enough and all(labels.get(name) == value for name, value in self.labels.items())

    def __str__(self) -> str:
        amounts = [f"{amount:g} {name}" for name, amount in self.amounts.items() if amount]
        return ", ".join([*amounts, *(f"{name}={value}" for name, value in self.labels.items())])
