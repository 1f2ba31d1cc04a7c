"""Update a run whose collection has changed: build a new version beside the old one, then switch to it."""
