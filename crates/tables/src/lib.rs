//! Rows, keys, shard keys and lookups of every service.
