"""The training step: the model on one device, what it is fed, how parallelisms are put on it, and its proof."""
