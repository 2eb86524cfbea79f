"""All nodes of a job together: who is here, and which of them would break it."""
