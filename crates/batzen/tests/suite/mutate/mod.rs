//! Mutated requests to real processes: every endpoint of every service, with valid requests changed slightly
//! or badly.
//!
//! A service is started, and ordinary clients use it through a proxy that records their requests. Then
//! mutated requests are sent: JSON members removed, doubled, or with other types, numbers at and beyond all
//! limits, base32 with flipped characters, keys and signatures of other requests, changed paths, methods,
//! queries and headers, damaged compression, and framing with wrong lengths. Ledger, signer and the exchange's feed
//! also get mutated messages of their binary protocols, and a relay changes what an exchange and its auditor tell each
//! other. Every endpoint of a service's route table must have answered a request of these clients with success. It is
//! shown that
//!
//! 1. the process keeps running, and nothing in it panics;
//! 2. every answer is well-formed, errors have a code, and no status is above 499 except for 503, and for 502 and 504
//!    with the code of another service's failure;
//! 3. the memory of the process does not grow with the number of requests;
//! 4. honest clients are served afterwards, the books balance, and the auditor finds nothing.
//!
//! `BATZEN_MUTATE_REQUESTS` sets the number of requests to all services together
//! (`make mutate REQUESTS=10000000`), which `campaign::SHARES` divides, and `BATZEN_MUTATE_SEED` sets the
//! choices. A failure writes the bytes to `target/mutate/` and prints the commands that send them again
//! (`BATZEN_MUTATE_REPLAY`) and that repeat the run.

mod answer;
mod campaign;
mod deployment;
mod dice;
mod feed;
mod frames;
mod identity;
mod ledger;
mod mutant;
mod people;
mod proxy;
mod pump;
mod recorded;
mod routes;
mod score;
mod seeds;
mod shop;
mod signer;
mod switch;
mod text;
mod tree;
