"""SeqIO tasks, their preprocessors and vocabularies. Importing `shipped_tasks` registers the tasks."""
