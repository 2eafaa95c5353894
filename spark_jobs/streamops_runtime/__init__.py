"""What runs on the cluster: the runner with its sources, sinks and gate."""
