"""What the SQLite stores of facts and recall have in common: connections, migrations, filters."""
