"""The model on one device, and what a parallelism is handed of it."""
