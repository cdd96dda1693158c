//! Mutated requests to real processes: every endpoint of every service, from valid requests that are a
//! little, or very, wrong.
//!
//! A service is started, ordinary clients use it through a proxy that notes their requests, and then changed
//! ones are sent: members of JSON removed, doubled, of other types, numbers at and beyond all edges, base32
//! with flipped characters, keys and signatures of other requests, paths, methods, queries, headers, damaged
//! compression, frames whose lengths are wrong; to ledger and signer the same with frames of their binary
//! protocols. It is shown that
//!
//! 1. the process goes on, and nothing in it panics;
//! 2. every answer is well-formed, errors say their code, and no status is above 499 but 503;
//! 3. the memory of the process does not grow with the number of requests;
//! 4. honest clients are served afterwards, and the books add up.
//!
//! `BATZEN_MUTATE_REQUESTS` sets the number of requests to all services together (`make mutate
//! REQUESTS=10000000`), which `campaign::SHARES` divides, and `BATZEN_MUTATE_SEED` the choices. A failure
//! writes the bytes to `target/mutate/` and prints the commands that send them again (`BATZEN_MUTATE_REPLAY`)
//! and that repeat the run.

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
