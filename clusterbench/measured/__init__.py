"""The metrics that follow from what ranks recorded of a training step; no torch."""
