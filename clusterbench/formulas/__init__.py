"""The field's formulas, each with its source: pure functions of numbers, standard library only."""
