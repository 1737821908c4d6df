from inferscale_sdk.facts.sqlite import SQLiteFactStore
from inferscale_sdk.testing.fact_store_suite import FactStoreSuite


class TestSQLiteFactStore(FactStoreSuite):
    def open_store(self, folder):
        return SQLiteFactStore(folder / "facts.db")
