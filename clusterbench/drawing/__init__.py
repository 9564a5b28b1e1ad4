"""What every figure is made with: panels of curves, bars and spans in one look, and SVG for a page."""
