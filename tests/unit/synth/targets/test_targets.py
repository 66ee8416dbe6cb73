"""Every dialect of XML passes the kit."""

from __future__ import annotations

import pytest

from chorale.synth.targets.base import Target
from chorale.synth.targets.msccl_executor_xml import MscclExecutorXml
from chorale.synth.targets.msccl_xml import MscclXml
from chorale.synth.targets.oneccl_xml import OneCclXml
from tests.conformance.target_kit import TargetKit


class TestMscclXml(TargetKit):
    @pytest.fixture
    def target(self) -> Target:
        return MscclXml()


class TestMscclExecutorXml(TargetKit):
    @pytest.fixture
    def target(self) -> Target:
        return MscclExecutorXml()


class TestOneCclXml(TargetKit):
    @pytest.fixture
    def target(self) -> Target:
        return OneCclXml()
