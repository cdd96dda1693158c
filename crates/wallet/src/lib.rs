//! The wallet: a core without I/O, a SQLite file and an HTTP driver around it.
