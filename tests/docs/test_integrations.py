"""The table of what works where says what the adapters' tests claim, no more and no less."""

from ..integrations import table


def test_the_table_says_what_the_tests_claim():
    assert table.PAGE.read_text() == table.page_with(table.render(table.declared())), (
        "make test-integrations writes the table again; python -m tests.integrations.table --declared does "
        "so from the marks alone"
    )


def test_every_cell_is_proven_or_has_a_reason():
    assert table.contradictions(table.declared()) == []
