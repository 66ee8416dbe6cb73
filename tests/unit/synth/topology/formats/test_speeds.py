"""Bandwidths of parts."""

from fractions import Fraction

import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.rates import cpu_rate, nvlink_rate, pci_rate, xgmi_rate


@pytest.mark.parametrize(
    ("capability", "bandwidth"),
    [(50, "20"), (60, "18"), (70, "20"), (75, "20"), (80, "20"), (86, "12"), (89, "20"), (90, "20.6"), (100, "40.1")],
)
def test_nvlink(capability, bandwidth):
    assert nvlink_rate(capability).expected == Fraction(bandwidth)


@pytest.mark.parametrize(
    ("architecture", "bandwidth"),
    [("gfx90a:sramecc+", 36), ("910", 36), ("gfx942", 48), ("gfx950", 48), ("gfx908", 24), ("908", 24), ("", 24)],
)
def test_xgmi(architecture, bandwidth):
    assert xgmi_rate(architecture).expected == bandwidth


@pytest.mark.parametrize(
    ("speed", "width", "bandwidth"),
    [("2.5 GT/s PCIe", 1, Fraction(3, 16)), ("5.0 GT/s PCIe", 16, 6), ("8 GT/s", 16, 12), ("16.0 GT/s PCIe", 8, 12),
     ("32 GT/s", 16, 48), ("64.0 GT/s PCIe", 16, 96), ("", 0, 12), ("Unknown", 255, 12), ("Unknown speed", 4, 3)],
)  # fmt: skip
def test_pci(speed, width, bandwidth):
    assert pci_rate(speed, width).expected == bandwidth


@pytest.mark.parametrize("speed", ["16", "16 GB/s", "1e3 GT/s", "16.5 GT/s", "-8 GT/s"])
def test_other_speeds_are_refused(speed):
    with pytest.raises(InvalidInput, match="link_speed must be a speed of PCI Express"):
        pci_rate(speed, 16)


@pytest.mark.parametrize(
    ("rate", "physical"),
    [(nvlink_rate(100), 50), (nvlink_rate(90), 25), (nvlink_rate(80), 25), (nvlink_rate(86), Fraction("14.0625")),
     (pci_rate("8 GT/s", 16), Fraction("15.75")), (pci_rate("16 GT/s", 16), Fraction("31.5")),
     (pci_rate("32 GT/s", 16), 63), (pci_rate("2.5 GT/s PCIe", 1, is_bridge=True), Fraction("31.5")),
     (xgmi_rate("gfx90a"), 50), (xgmi_rate("gfx942"), 64), (xgmi_rate("gfx950"), Fraction("76.8"))],
)  # fmt: skip
def test_physical_rates_are_above_those_of_the_libraries(rate, physical):
    assert rate.physical == physical > rate.expected


AMD, INTEL = "AuthenticAMD", "GenuineIntel"


@pytest.mark.parametrize(
    ("architecture", "vendor", "family", "model", "bandwidth"),
    [("x86_64", AMD, 23, 49, 16), ("x86_64", AMD, 25, 1, 24), ("x86_64", AMD, 26, 2, 32), ("x86_64", AMD, 175, 1, 24),
     ("x86_64", INTEL, 6, 63, 6), ("x86_64", INTEL, 6, 85, 10), ("x86_64", INTEL, 6, 143, 22),
     ("x86_64", INTEL, 6, 207, 40), ("x86_64", INTEL, 6, 173, 40), ("x86_64", INTEL, 15, 207, 6),
     ("x86_64", "CentaurHauls", 7, 91, 9), ("x86_64", "CentaurHauls", 7, 59, 6),
     ("ppc64", "", 0, 0, 32), ("arm64", "", 0, 0, 6), ("riscv", "", 0, 0, 5000)],
)  # fmt: skip
def test_cpus(architecture, vendor, family, model, bandwidth):
    assert cpu_rate({"arch": architecture, "vendor": vendor}, family, model).expected == bandwidth
