"""What tests share: streams, runs, references and recorders."""
