"""Contains the families of topologies, such as tori and Kautz graphs. `chorale.synth.topology.spec` lists them all."""
