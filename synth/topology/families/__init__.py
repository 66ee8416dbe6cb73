"""Families of topologies, one file per group; `synth.topology.catalog` lists them all."""
