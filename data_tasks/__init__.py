"""SeqIO tasks and their preprocessors. Importing `shipped_tasks` registers the tasks."""
