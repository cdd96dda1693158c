//! The HTTP frame of every service: accept loop, deadlines, limits, compression, error answers; and the client.
