"""Families of topologies, one file per group; `chorale.synth.topology.catalog` lists them all."""
