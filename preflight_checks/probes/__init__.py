"""Programs that the training environment's Python runs; nothing here is imported."""
