"""The paper's experiments: what is compared, as data, and the machinery that runs it once and keeps the counts."""
