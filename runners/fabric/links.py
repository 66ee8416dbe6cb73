"""Lays the links of a fabric whose namespaces are there: honest ones where they can be had, else the kernel's."""

from __future__ import annotations

import os

from chorale.runners.fabric.holder import NamespaceHolder, enter_command
from chorale.runners.fabric.link_facts import FabricLinks
from chorale.runners.fabric.link_options import LinkKind, LinkOptions
from chorale.runners.fabric.link_shape import bucket_honest_bytes
from chorale.runners.fabric.plan import FabricPlan
from chorale.runners.fabric.setup_script import cables_script
from chorale.runners.fabric.wire import require_wire, start_wire, thread_count
from chorale.synth.errors import Unavailable
from chorale.synth.identity import rational_text

_CHOSEN = "chosen with --links bucket"


def lay_links(plan: FabricPlan, holder: NamespaceHolder, options: LinkOptions) -> FabricLinks:
    """Return the new links between the namespaces of `holder`.

    Raises Unavailable where honest links cannot be had and the options insist on them, by kind, latency or loss.
    """
    if options.kind == LinkKind.BUCKET:
        return _lay_buckets(plan, holder, options, _CHOSEN)
    try:
        return _lay_wires(plan, holder, options)
    except Unavailable as missing:
        if options.kind == LinkKind.WIRE or options.needs_wire:
            raise
        return _lay_buckets(plan, holder, options, str(missing))


def _lay_wires(plan: FabricPlan, holder: NamespaceHolder, options: LinkOptions) -> FabricLinks:
    threads = thread_count(plan.bits_per_s, len(os.sched_getaffinity(0)))
    enter = enter_command(holder.pid, True) if holder.in_user_namespace and os.geteuid() != 0 else ()
    pid = start_wire(require_wire(), plan, holder.pid, threads, options.seed, enter)
    return FabricLinks(
        LinkKind.WIRE,
        latency_us=rational_text(options.latency_us),
        loss=rational_text(options.loss),
        overrides=options.overrides_text,
        seed=options.seed,
        threads=threads,
        wire_pid=pid,
    )


def _lay_buckets(plan: FabricPlan, holder: NamespaceHolder, options: LinkOptions, why: str) -> FabricLinks:
    holder.run(cables_script(plan))
    honest_bytes = max(bucket_honest_bytes(rate) for cable in plan.cables for rate in cable.bits_per_s if rate)
    return FabricLinks(why_bucket=why, overrides=options.overrides_text, seed=options.seed, honest_bytes=honest_bytes)
