"""The report: schema, pages, charts, tables and comparisons."""
