"""Draws networks, schedules, programs and campaigns; within `tuner`, only this package imports matplotlib.

Matplotlib is optional and slow to import, so the functions below are imported when they are first used.
"""

from chorale.synth.lazy_modules import lazy_names

__getattr__ = lazy_names(
    __name__,
    {
        "chorale.tuner.plots.charts": "plot_frontier plot_goodput plot_program plot_training",
        "chorale.tuner.plots.network_plots": "plot_cabling plot_schedule plot_topology",
    },
)
