"""The models of results.json and report.json, which every stage of an evaluation returns."""
