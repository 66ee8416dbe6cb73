"""Every form of spec is declared in the module that its table names, and no module declares another."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import pytest

from chorale.synth.topology.registry import SpecForm, SpecForms
from chorale.synth.topology.spec import FAMILIES, FUNCTIONS


@pytest.mark.parametrize("forms", [FAMILIES, FUNCTIONS])
def test_the_names_in_each_table_are_those_that_its_module_declares(forms: Mapping[str, SpecForm]):
    assert isinstance(forms, SpecForms)
    for table, names in forms.tables.items():
        module, _, variable = table.rpartition(".")
        declared = getattr(importlib.import_module(f"chorale.synth.topology.{module}"), variable)
        assert sorted(form.name for form in declared) == sorted(names.split())
    assert all(form.name == name for name, form in forms.items())


def test_a_name_that_no_table_has_is_no_form():
    assert "nonsense" not in FAMILIES
    with pytest.raises(KeyError):
        FAMILIES["nonsense"]
