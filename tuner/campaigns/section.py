"""What all sections of a campaign file have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class CampaignSection(BaseModel):
    """A section of the file: unknown keys are errors, values are not changed after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
