//! The bank: wire gateway, bank integration and access APIs on double-entry accounts.
