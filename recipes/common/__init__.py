"""Code shared by the studies: settings, tables, pages, model cards."""
