"""What `report` shows of runs: their records, the plots of their metrics, and the page."""
