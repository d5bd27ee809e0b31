"""What several test modules share; fixtures are in conftest."""
