"""Runs tuning campaigns: the search, launches, and the registry of results.

The names below are stable; each is imported when it is first used.
"""

from typing import TYPE_CHECKING

from chorale.synth.lazy_modules import lazy_names

if TYPE_CHECKING:
    from chorale.tuner.config.campaign import Campaign as Campaign, make_workers as make_workers
    from chorale.tuner.config.campaign_file import (
        campaign_of as campaign_of,
        load_campaign as load_campaign,
        parse_campaign as parse_campaign,
    )
    from chorale.tuner.files.home import Home as Home
    from chorale.tuner.files.program_files import load_program as load_program
    from chorale.tuner.files.schedule_files import (
        load_schedule as load_schedule,
        load_topology as load_topology,
        save_schedule as save_schedule,
    )
    from chorale.tuner.launch.tune import TuneReport as TuneReport, progress_display as progress_display, tune as tune
    from chorale.tuner.tracking.mlflow_store import MlflowStore as MlflowStore
    from chorale.tuner.tracking.registry import RegistryEntry as RegistryEntry, load_best as load_best
    from chorale.tuner.trials.records import (
        Candidate as Candidate,
        TrialRecord as TrialRecord,
        tuning_table as tuning_table,
    )

_HOMES = {
    "chorale.tuner.config.campaign": "Campaign make_workers",
    "chorale.tuner.config.campaign_file": "campaign_of load_campaign parse_campaign",
    "chorale.tuner.files.home": "Home",
    "chorale.tuner.files.program_files": "load_program",
    "chorale.tuner.files.schedule_files": "load_schedule load_topology save_schedule",
    "chorale.tuner.launch.tune": "TuneReport progress_display tune",
    "chorale.tuner.tracking.mlflow_store": "MlflowStore",
    "chorale.tuner.tracking.registry": "RegistryEntry load_best",
    "chorale.tuner.trials.records": "Candidate TrialRecord tuning_table",
}

__all__ = [name for names in _HOMES.values() for name in names.split()]  # imported on first use
__getattr__ = lazy_names(__name__, _HOMES)
