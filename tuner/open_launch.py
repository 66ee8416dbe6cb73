"""Opening the launch of a campaign: a new one, or one that goes on."""

from __future__ import annotations

import logging
import time
import uuid

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology
from chorale.tuner.campaigns.campaign import Campaign
from chorale.tuner.campaigns.launch import Launch, check_same_conditions, conditions_of, launch_folders
from chorale.tuner.campaigns.store import Store, is_begun, read_launch
from chorale.tuner.home import Home

_log = logging.getLogger("chorale.tune")


def open_store(
    campaign: Campaign,
    topology: Topology,
    home: Home,
    resume: bool,
    launch_id: str | None = None,
    patience_s: float = 0.0,
) -> Store:
    """Return the store of a new launch, or with `resume` of the newest one if there is any.

    With a `launch_id` it is the launch with this id that goes on, or that begins if there is none: whoever starts it
    again after a crash need not know how far it came, and gives what it was `patience_s` to be gone. A resumed launch
    must have the same conditions; its budget, search space and sampler may differ.
    """
    folders = launch_folders(home, campaign.name)
    begun = [folder for folder in folders if is_begun(folder)]
    if launch_id is not None:
        begun = [folder for folder in begun if read_launch(folder).launch_id == launch_id]
    conditions = conditions_of(campaign, topology)
    if begun and (resume or launch_id is not None):
        store = Store(begun[-1], patience_s=patience_s)
        try:
            check_same_conditions(store.launch, conditions)
        except InvalidInput:
            store.close()
            raise
        _log.info("resuming launch %d of %s with %d trials", store.launch.number, campaign.name, len(store.trials))
        return store
    number = int(folders[-1].name) + 1 if folders else 1
    if resume:
        _log.info("nothing to resume for %s: this is its first launch", campaign.name)
    elif folders:
        _log.info("launch %d of %s; the earlier ones stay (--resume goes on with the newest)", number, campaign.name)
    document = campaign.model_dump(by_alias=True, mode="json")
    launch = Launch(launch_id or uuid.uuid4().hex, number, conditions, document, time.time())
    return Store(home.create(home.campaigns / campaign.name / str(number)), launch)
