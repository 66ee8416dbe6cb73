"""Every dialect of XML passes the kit."""

import pytest

from chorale.synth.targets.base import Target
from chorale.synth.targets.xml_targets import MscclExecutorXml, MscclXml, OneCclXml
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
