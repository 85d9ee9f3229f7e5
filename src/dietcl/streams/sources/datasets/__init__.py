"""Published data sets in the layout that they are distributed in."""
