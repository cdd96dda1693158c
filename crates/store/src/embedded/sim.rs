//! A file system in memory that fails when told to: for crash and fault tests.
