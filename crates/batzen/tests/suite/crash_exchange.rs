//! `kill -9` on the exchange under load, again and again, and the proof that money survives it.
//!
//! Bank and exchange are real processes of the real program. This process is their customers: it withdraws,
//! deposits, melts, reveals and asks for refunds over HTTP, all at the same time, and writes down every
//! answer it got. The exchange (and now and then the bank) is killed at random moments and started again.
//! Then it is proven that
//!
//! 1. every acknowledged operation is in the exchange's store, and the same request gets the same answer
//!    again: none is lost;
//! 2. no coin was accepted beyond its value: every spent coin is refused by another shop, with a history
//!    whose signatures verify and whose sums explain the refusal; of two shops that were offered the same
//!    coin at once, one got it;
//! 3. every request whose answer never came is settled by asking again;
//! 4. the books of exchange and bank add up to the last unit, also with what the customers wrote down;
//! 5. deposits were aggregated and paid, each transfer reached the bank once, and the merchants have what is
//!    theirs;
//! 6. the proof can fail: an operation that never happened, a coin accepted twice, a store without its last
//!    commit, and an answer that changed are all found.
//!
//! `BATZEN_SOAK_CYCLES` sets the number of kills (default 5; `make soak` does 50), `BATZEN_SOAK_SEED` repeats
//! the choices of an earlier run (not its timing).

use crate::crash::{deployment, run};

use deployment::Deployment;
use run::{Kill, cycles, play};

/// One in this many cycles kills the bank, too.
const BANK_CYCLES: u64 = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_under_load_loses_nothing() {
    let kill = |cycle: u64| match cycle % BANK_CYCLES {
        0 => Kill::ExchangeAndBank,
        _ => Kill::Exchange,
    };
    play(Deployment::new(run::client()), (1..=cycles()).map(kill).collect()).await;
}
