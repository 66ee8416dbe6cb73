"""Where the processes of ranks are started: this machine, a node of a fabric, a node of a cluster."""
