"""Run regions in slices of time as their hints say, and keep the ledger of those hints."""
