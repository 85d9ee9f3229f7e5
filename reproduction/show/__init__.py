"""What suites measured, shown: tables, figures, pages, and RESULTS.md with docs/paper-claims.md."""
