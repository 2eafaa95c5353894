"""The cluster: its nodes and members, the runbooks that change it, and what brings back what should run."""
