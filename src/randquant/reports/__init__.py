"""Self-contained pages: a template, tables, charts."""
