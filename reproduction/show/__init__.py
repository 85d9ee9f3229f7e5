"""What suites measured, shown: tables, figures, pages and RESULTS.md."""
