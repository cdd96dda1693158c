//! Sums over all accounts, for the metrics. The ledger is read page by page; the interval depends on how long
//! a reading takes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use batzen_http::Drain;
use batzen_ledger::{BATCH_EVENTS_MAX, Ledger, LedgerError, QueryFilter, in_parts};
use batzen_metrics::Page;

use crate::chart::{CODE_NAMED, Chart};

/// The shortest pause between two readings.
const PAUSE_MIN: Duration = Duration::from_secs(10);
/// The least ratio of the pause after a reading to its duration.
const PAUSE_PER_READING: u32 = 20;

/// The sums of all accounts, in units of 10⁻⁸. They are not taken at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    accounts: u64,
    /// The sum in accounts that are not overdrawn.
    held: u128,
    /// The debt of overdrawn accounts.
    debt: u128,
    /// The sum reserved for withdrawals.
    set_aside: u128,
}

/// The sums of the last reading; `None` before the first.
#[derive(Debug, Default)]
pub(crate) struct MoneySums(Mutex<Option<Sums>>);

impl MoneySums {
    /// Writes `batzen_bank_accounts` and `batzen_bank_money_*`, in the currency.
    pub(crate) fn write(&self, page: &mut Page) {
        let Some(sums) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) else { return };
        page.gauge("batzen_bank_accounts", "Accounts in the ledger", sums.accounts);
        for (name, help, units) in [
            ("held", "Money in accounts that are not overdrawn", sums.held),
            ("debt", "Debt of overdrawn accounts", sums.debt),
            ("set_aside", "Money reserved for withdrawals waiting for confirmation", sums.set_aside),
        ] {
            page.gauge(&format!("batzen_bank_money_{name}"), help, decimal(units));
        }
    }

    /// Keeps the sums up to date until the drain fires.
    pub(crate) async fn keep(self: Arc<Self>, ledger: Arc<dyn Ledger>, chart: Chart, drain: Drain) {
        loop {
            let begun = Instant::now();
            match add_up(ledger.as_ref(), &chart).await {
                Ok(sums) => *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(sums),
                Err(error) => tracing::warn!(%error, "the accounts could not be added up for the metrics"),
            }
            let pause = PAUSE_MIN.max(begun.elapsed() * PAUSE_PER_READING);
            tokio::select! {
                () = drain.draining() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

async fn add_up(ledger: &dyn Ledger, chart: &Chart) -> Result<Sums, LedgerError> {
    let mut sums = Sums::default();
    let mut filter = QueryFilter {
        user_data_128: chart.identity(),
        code: CODE_NAMED,
        limit: u32::try_from(BATCH_EVENTS_MAX).expect("a small constant"),
        ..QueryFilter::default()
    };
    loop {
        let page = in_parts(filter, |filter| ledger.query_accounts(filter)).await?;
        let Some(last) = page.last() else { return Ok(sums) };
        filter.timestamp_min = last.timestamp + 1;
        for account in page {
            // An account that is being opened may not have its headroom yet.
            let credits = account.credits_posted.saturating_sub(chart.headroom());
            sums.accounts += 1;
            sums.held += credits.saturating_sub(account.debits_posted);
            sums.debt += account.debits_posted.saturating_sub(credits);
            sums.set_aside += account.debits_pending;
        }
    }
}

/// Units of 10⁻⁸ as a decimal number.
fn decimal(units: u128) -> String {
    let text = format!("{}.{:08}", units / 100_000_000, units % 100_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use batzen_ledger::{CreateTransferStatus, MemoryLedger, Transfer, TransferFlags};
    use batzen_tables::bank::BankStateRow;

    use super::*;

    #[tokio::test]
    async fn sums_are_of_what_customers_have_and_owe() {
        let state = BankStateRow {
            currency: "KUDOS".to_owned(),
            next_row_id: 1,
            password_salt: [0; 16],
            identity: [7; 16],
            headroom: 500,
        };
        let (chart, ledger) =
            (Chart::new(&state, "KUDOS".parse().unwrap()), MemoryLedger::with_system_clock());
        assert_eq!(add_up(&ledger, &chart).await.unwrap(), Sums::default());
        let openings = ["ann", "joe"].map(|name| chart.opening(name));
        let accounts = chart.own_accounts().into_iter().chain(openings.iter().map(|one| one.account));
        ledger.create_accounts(accounts.collect()).await.unwrap();
        let move_from = |from: usize, id: u128, amount: u128, flags: TransferFlags| Transfer {
            id,
            debit_account_id: openings[from].account.id,
            credit_account_id: openings[1 - from].account.id,
            amount,
            flags,
            ..openings[0].headroom
        };
        let mut transfers = openings.map(|one| one.headroom).to_vec();
        // Joe owes 300, which Ann has, and 20 of Ann's are reserved.
        transfers.push(move_from(1, 1, 300, TransferFlags::NONE));
        transfers.push(move_from(0, 2, 20, TransferFlags::PENDING));
        let results = ledger.create_transfers(transfers).await.unwrap();
        assert!(results.iter().all(|result| result.status == CreateTransferStatus::Created), "{results:?}");
        let expected = Sums { accounts: 2, held: 300, debt: 300, set_aside: 20 };
        assert_eq!(add_up(&ledger, &chart).await.unwrap(), expected);
    }

    #[test]
    fn decimals() {
        for (units, text) in [(0, "0"), (100_000_000, "1"), (1_250_000_000, "12.5"), (1, "0.00000001")] {
            assert_eq!(decimal(units), text);
        }
    }
}
