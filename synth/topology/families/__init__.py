"""Families of topologies, one file per group; `chorale.synth.topology.spec` lists them all."""
