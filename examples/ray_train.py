"""Data-parallel training on a Ray cluster in which the programs of a tuning table add the gradients.

python examples/ray_train.py --table fabric.table --workers 4 --reports reports
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train(config: dict[str, Any]) -> None:
    """Train on this worker's own data for some steps, then write which programs ran."""
    import ray.train.torch
    import torch

    from chorale.job import report

    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank = torch.distributed.get_rank()
    torch.manual_seed(rank + 1)
    for _ in range(config["steps"]):
        loss = model(torch.randn(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    said = {"loss": loss.item(), "backend": torch.distributed.get_backend(), **report()}
    said["weights"] = [parameter.sum().item() for parameter in model.parameters()]
    Path(config["reports"], f"{rank}.json").write_text(json.dumps(said))


def main() -> None:
    """Train on this process's Ray cluster, or on a new local one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, required=True, help="on a path that all nodes have")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--reports", type=Path, default=Path("reports"), help="on a path that all nodes have")
    options = parser.parse_args()
    run(options.table, options.workers, options.steps, options.reports)


def run(table: Path, workers: int, steps: int, reports: Path) -> None:
    """Train with `workers` workers; each writes its report into the folder `reports`."""
    reports.mkdir(parents=True, exist_ok=True)
    if not ray.is_initialized():
        ray.init()
    trainer = TorchTrainer(
        train,
        train_loop_config={"steps": steps, "reports": str(reports.resolve())},
        torch_config=TorchConfig(backend="chorale"),
        scaling_config=ScalingConfig(num_workers=workers, placement_strategy="SPREAD"),
        run_config=RunConfig(
            storage_path=str(reports.resolve()),
            worker_runtime_env={"env_vars": {"CHORALE_TABLE": str(table.resolve())}},
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
