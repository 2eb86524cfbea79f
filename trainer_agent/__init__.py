"""trainer-agent: proves that the nodes of a Kubeflow TrainJob can train, fetches its data and launches it."""

__version__ = "0.1.0"
