//! The batching pipeline: prefetch, execute, commit.
