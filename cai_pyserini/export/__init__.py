"""Export document impacts and encoders to the formats of other systems."""
