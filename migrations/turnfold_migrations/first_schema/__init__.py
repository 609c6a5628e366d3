"""The parts of migration 1001, by topic. Like the migration, they never change."""
