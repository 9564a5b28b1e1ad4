"""What a training step should cost and how far it may deviate, from the describing halves alone; no torch."""
