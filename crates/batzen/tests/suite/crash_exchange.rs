//! `kill -9` on the exchange under load, repeatedly, and a proof that no money is lost.
//!
//! Bank and exchange are real processes of the real program. This process plays their customers: it
//! withdraws, deposits, melts, reveals and asks for refunds over HTTP, all at the same time, and records
//! every answer. The exchange (and sometimes the bank) is killed at random moments and restarted. Then it is
//! proven that
//!
//! 1. every acknowledged operation is in the exchange's store, and the same request gets the same answer
//!    again: none is lost;
//! 2. no coin was accepted beyond its value: another shop that is offered a spent coin gets a refusal, with a
//!    history whose signatures verify and whose sums explain it; of two shops that were offered the same coin
//!    at once, one got it;
//! 3. every request without an answer is settled by repeating it;
//! 4. the books of exchange and bank balance to the last unit, and agree with the customers' records;
//! 5. deposits were aggregated and paid, each transfer reached the bank once, and the merchants have their
//!    money;
//! 6. the proof can fail: an operation that never happened, a coin accepted twice, a store without its last
//!    commit, and a changed answer are all found.
//!
//! `BATZEN_SOAK_CYCLES` sets the number of kills (default 5; `make soak` does 50), `BATZEN_SOAK_SEED` repeats
//! the choices of an earlier run (not its timing).

use crate::crash::{deployment, run};

use deployment::Deployment;
use run::{Kill, cycles, play};

/// One in this many cycles also kills the bank.
const BANK_CYCLES: u64 = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_under_load_loses_nothing() {
    let kill = |cycle: u64| match cycle % BANK_CYCLES {
        0 => Kill::ExchangeAndBank,
        _ => Kill::Exchange,
    };
    play(Deployment::new(run::client()), (1..=cycles()).map(kill).collect()).await;
}
