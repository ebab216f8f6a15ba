"""The models of report.json, which every stage of an evaluation returns."""
