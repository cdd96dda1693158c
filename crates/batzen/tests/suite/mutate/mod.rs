//! Mutated requests to real processes: every endpoint of every service, with valid requests changed slightly
//! or badly.
//!
//! A service is started, and ordinary clients use it through a proxy that records their requests. Then
//! mutated requests are sent: JSON members removed, doubled, or with other types, numbers at and beyond all
//! limits, base32 with flipped characters, keys and signatures of other requests, changed paths, methods,
//! queries and headers, damaged compression, and framing with wrong lengths. Ledger and signer also get
//! mutated frames of their binary protocols. It is shown that
//!
//! 1. the process keeps running, and nothing in it panics;
//! 2. every answer is well-formed, errors have a code, and no status is above 499 except for 503;
//! 3. the memory of the process does not grow with the number of requests;
//! 4. honest clients are served afterwards, and the books balance.
//!
//! `BATZEN_MUTATE_REQUESTS` sets the number of requests to all services together
//! (`make mutate REQUESTS=10000000`), which `campaign::SHARES` divides, and `BATZEN_MUTATE_SEED` sets the
//! choices. A failure writes the bytes to `target/mutate/` and prints the commands that send them again
//! (`BATZEN_MUTATE_REPLAY`) and that repeat the run.

mod answer;
mod campaign;
mod deployment;
mod dice;
mod frames;
mod ledger;
mod mutant;
mod proxy;
mod pump;
mod recorded;
mod routes;
mod score;
mod seeds;
mod signer;
mod switch;
mod text;
mod tree;
