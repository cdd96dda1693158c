//! The rules and a ledger without server and threads. Executes one command after the other.

use std::sync::Arc;

use batzen_bank::books::{self, Totals};
use batzen_bank::chart::{self, Chart};
use batzen_bank::rules::{Answer, BankRules, Command, Finish, Intent, Open, Policy, Refusal};
use batzen_engine::Batcher;
use batzen_ledger::{Ledger, MemoryLedger};
use batzen_protocol::{Currency, Timestamp};
use batzen_store::Store;
use batzen_store::memory::MemoryBackend;

pub(crate) const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

pub(crate) struct RulesHarness {
    pub store: Store,
    pub ledger: Arc<MemoryLedger>,
    pub chart: Chart,
    batcher: Batcher<BankRules>,
    runtime: tokio::runtime::Runtime,
}

impl RulesHarness {
    pub(crate) fn new(policy: Policy) -> Self {
        let store = Store::new(MemoryBackend::new());
        let batcher = Batcher::new(Arc::new(BankRules { policy }), store.clone());
        let currency: Currency = "KUDOS".parse().unwrap();
        let open = Command::Open(Open { currency, password_salt: [7; 16], identity: [8; 16] });
        let Answer::Opened(state) = batcher.run(&[open], &|| NOW).unwrap().remove(0).unwrap() else {
            panic!("opening opens")
        };
        let chart = Chart::new(&state, currency);
        let ledger = Arc::new(MemoryLedger::new(|| NOW.as_micros() * 1000));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let created = runtime.block_on(ledger.create_accounts(chart.own_accounts().to_vec())).unwrap();
        assert!(created.iter().all(|result| result.status.stands()));
        Self { store, ledger, chart, batcher, runtime }
    }

    /// One batch with one command.
    pub(crate) fn rule(&self, command: Command) -> Result<Answer, Refusal> {
        self.batcher.run(&[command], &|| NOW).unwrap().remove(0)
    }

    /// Asks the ledger for an intent.
    pub(crate) fn ask(&self, intent: &Intent) -> chart::Verdict {
        let names = [
            (intent.opens_debit, &intent.row.debit_account),
            (intent.opens_credit, &intent.row.credit_account),
        ];
        for (opens, name) in names {
            if opens {
                let opening = self.chart.opening(name);
                let account = self.ledger.create_accounts(vec![opening.account]);
                assert!(self.runtime.block_on(account).unwrap()[0].status.stands());
                let headroom = self.ledger.create_transfers(vec![opening.headroom]);
                assert!(self.runtime.block_on(headroom).unwrap()[0].status.stands());
            }
        }
        let transfers = self.chart.transfers(&intent.key, &intent.row);
        let results = self.runtime.block_on(self.ledger.create_transfers(transfers)).unwrap();
        let statuses: Vec<_> = results.iter().map(|result| result.status).collect();
        chart::verdict(intent.key.origin(), &statuses).unwrap()
    }

    /// Executes a command completely.
    pub(crate) fn execute(&self, command: Command) -> Result<Answer, Refusal> {
        match self.rule(command)? {
            Answer::Intended(intent) => self.finish(*intent),
            outcome => Ok(outcome),
        }
    }

    pub(crate) fn finish(&self, intent: Intent) -> Result<Answer, Refusal> {
        let verdict = self.ask(&intent);
        match self.rule(Command::Finish(Finish([(intent, verdict)].into()))).unwrap() {
            Answer::Finished(mut finished) => finished.remove(0).result,
            other => panic!("answers are booked, not {other:?}"),
        }
    }

    pub(crate) fn check(&self) -> Totals {
        self.ledger.verify().unwrap();
        self.runtime.block_on(books::check(&self.store, self.ledger.as_ref())).unwrap()
    }
}
