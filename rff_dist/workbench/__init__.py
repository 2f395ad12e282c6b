"""The workbench: jobs, tables, pages and the command line around the library."""
