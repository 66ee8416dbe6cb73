"""Champions: how the alias of a registered model moves to a version, and back to the one before."""

from __future__ import annotations

from dataclasses import dataclass

from chorale.runners.measurement.precision import MedianInterval
from chorale.synth.errors import CheckFailed
from chorale.tuner.tracking.mlflow_store import MlflowStore
from chorale.tuner.tracking.mlflow_values import ModelVersion

PROMOTION = "chorale.promotion"
REASON = "chorale.promotion_reason"
AGAINST = "chorale.promotion_against"
RATIO = "chorale.promotion_ratio"
ROLLED_BACK = "chorale.rolled_back"
MAX_REMEMBERED = 100

PROMOTED, NOT_PROMOTED = "promoted", "kept out"


@dataclass(frozen=True, slots=True)
class PromotionVerdict:
    """Whether a program may take the alias, and why.

    against: number of the version that held the alias when this was decided, None if none did
    ratio:   interval of its time over that version's, repetition by repetition, where both were measured
    """

    promoted: bool
    reason: str
    against: str | None = None
    ratio: MedianInterval | None = None

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the version that record the verdict."""
        tags = {
            PROMOTION: PROMOTED if self.promoted else NOT_PROMOTED,
            REASON: self.reason,
            AGAINST: self.against or "",
        }
        return tags if self.ratio is None else tags | {RATIO: ratio_text(self.ratio)}


def apply_verdict(
    mlflow: MlflowStore, version: ModelVersion, alias: str, verdict: PromotionVerdict
) -> PromotionVerdict:
    """Point `alias` to `version` if the verdict allows it, tag the version with it, and return the final verdict.

    The version is kept out if the alias has moved to a version with which it was not compared.
    """
    holder = mlflow.aliased(version.name, alias)
    if holder is not None and holder.version == version.version:
        return verdict
    now = None if holder is None else holder.version
    if verdict.promoted and now != verdict.against:
        reason = f"version {now} holds the alias and was not compared with; launch with --resume to do it"
        verdict = PromotionVerdict(False, reason, now)
    mlflow.tag_version(version, verdict.tags)
    if verdict.promoted:
        before = [] if holder is None else [*_before(mlflow, holder, alias), holder.version]
        # The order matters: after a crash in between the alias has not moved, and its history is complete.
        _remember(mlflow, version.name, alias, [*before, version.version])
        mlflow.set_alias(version, alias)
    return verdict


def roll_back(mlflow: MlflowStore, name: str, alias: str) -> tuple[ModelVersion, ModelVersion]:
    """Point `alias` back to the version before; return (the version that held it, the version that holds it now).

    The former holder is tagged, so that no campaign promotes it again. CheckFailed if no version held it before.
    """
    holder = mlflow.aliased(name, alias)
    past = [] if holder is None else _before(mlflow, holder, alias)
    existing = {version.version: version for version in mlflow.versions(name)}
    earlier = [number for number in past if number in existing]
    if holder is None or not earlier:
        value = f"none for {name}" if holder is None else f"version {holder.version} of {name} is the first"
        raise CheckFailed("there must be a champion to go back to", value, "run a campaign, or leave it as it is")
    former = existing[earlier[-1]]
    mlflow.tag_version(holder, {ROLLED_BACK: f"to version {former.version}"})
    mlflow.set_alias(former, alias)
    _remember(mlflow, name, alias, earlier)
    return holder, former


def ratio_text(ratio: MedianInterval) -> str:
    """Return a ratio with its interval, such as `0.71 (0.69 to 0.74)`."""
    return f"{ratio.median:.3g} ({ratio.low:.3g} to {ratio.high:.3g})"


def _before(mlflow: MlflowStore, holder: ModelVersion, alias: str) -> list[str]:
    """Return the versions that held the alias before `holder`, oldest first."""
    past = [number for number in mlflow.model_tags(holder.name).get(_tag(alias), "").split(",") if number]
    return past[: past.index(holder.version)] if holder.version in past else []


def _remember(mlflow: MlflowStore, name: str, alias: str, numbers: list[str]) -> None:
    mlflow.tag_model(name, _tag(alias), ",".join(numbers[-MAX_REMEMBERED:]))


def _tag(alias: str) -> str:
    return f"chorale.champions.{alias}"
