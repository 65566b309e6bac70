"""What all suites share: platforms, records, rules, tables, and the documents made of them."""
