"""The report: one offline HTML file with the verdict of a fit, its figures and its record."""
