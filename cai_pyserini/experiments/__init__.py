"""A collection in, a table out: systems, the plan of steps, the run folder, reports, updates, judgments."""
