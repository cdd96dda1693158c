//! The start of a bank: which one it is, which ledger it has, and what was left open.

use std::sync::Arc;
use std::time::Duration;

use batzen_engine::Batcher;
use batzen_ledger::{Ledger, LedgerError, MemoryLedger};
use batzen_ledger_net::LedgerAddress;
use batzen_ledger_store::{DurableLedger, DurableOptions};
use batzen_storage::StoreConfig;
use batzen_store::Store;
use batzen_tables::bank::{BankStateKey, BankStateRow, OldBankStates};

use crate::BankError;
use crate::chart::Chart;
use crate::config::BankConfig;
use crate::rules::{BankRules, Command, HEADROOM_MAX, Outcome};
use crate::settler::{RecoveryError, Settler, create_accounts};

/// How long a start waits for the ledger.
const LEDGER_WAIT_MAX: Duration = Duration::from_secs(30);

/// The pause between attempts to reach it.
const CONNECT_PAUSE: Duration = Duration::from_millis(500);

/// A bank's ledger.
pub(crate) struct OpenLedger {
    /// To be used.
    pub ledger: Arc<dyn Ledger>,
    /// To be closed in order, and to be counted, if it is in this process.
    pub own: Option<Arc<DurableLedger>>,
}

/// Where the embedded ledger is kept, in the bank's directory. In a database it has a schema of its own.
const LEDGER_DIR: &str = "ledger";

/// Opens the chosen ledger.
pub(crate) async fn ledger(config: &BankConfig) -> Result<OpenLedger, BankError> {
    let clock = Arc::clone(&config.clock);
    let clock = move || clock.now().as_micros().saturating_mul(1000);
    match (&config.ledger, config.store.part(LEDGER_DIR)) {
        (LedgerAddress::Embedded, StoreConfig::Memory) => {
            Ok(OpenLedger { ledger: Arc::new(MemoryLedger::new(clock)), own: None })
        }
        (LedgerAddress::Embedded, place) => {
            let open = move || {
                let store = place.open(&batzen_storage::LEDGER, 1)?;
                DurableLedger::start(store, clock, DurableOptions::default())
            };
            let own = tokio::task::spawn_blocking(open).await.expect("opening a ledger does not panic")?;
            let own = Arc::new(own);
            Ok(OpenLedger { ledger: Arc::clone(&own) as Arc<dyn Ledger>, own: Some(own) })
        }
        (address, _) => {
            // A service manager may start both at once.
            let deadline = tokio::time::Instant::now() + LEDGER_WAIT_MAX;
            loop {
                match batzen_ledger_net::connect(&address.to_string()).await {
                    Ok(ledger) => return Ok(OpenLedger { ledger, own: None }),
                    Err(error @ LedgerError::Refused(_)) => return Err(error.into()),
                    Err(error) if tokio::time::Instant::now() >= deadline => return Err(error.into()),
                    Err(error) => tracing::info!(%error, %address, "the ledger is not there yet"),
                }
                tokio::time::sleep(CONNECT_PAUSE).await;
            }
        }
    }
}

/// Opens the embedded ledger of a bank that is not running, for tools.
///
/// # Errors
/// When it is in use or damaged.
pub fn embedded_ledger(store: &StoreConfig) -> Result<Arc<DurableLedger>, BankError> {
    let ledger = DurableLedger::open(&store.part(LEDGER_DIR), DurableOptions::default())?;
    Ok(Arc::new(ledger))
}

/// Creates the bank in an empty store, or checks that it is the one asked for; the ledger has its own accounts afterwards.
pub(crate) async fn books(
    config: &BankConfig,
    rules: Arc<BankRules>,
    store: Store,
    ledger: &dyn Ledger,
) -> Result<BankStateRow, BankError> {
    let mut random = [[0; 16]; 2];
    random.iter_mut().for_each(|bytes| batzen_crypto::fill_random(bytes));
    let [password_salt, identity] = random;
    if store.get::<OldBankStates>(&BankStateKey::ONLY)?.is_some() {
        let what =
            "the store is that of an earlier build, with balances of its own: start with an empty directory";
        return Err(BankError::Config(what.to_owned()));
    }
    let open = Command::Open { currency: config.currency, password_salt, identity };
    let state = match run(config, &rules, &store, open).await? {
        Outcome::Opened(state) => *state,
        _ => unreachable!("opening opens"),
    };
    let wanted = config.policy().headroom();
    if state.headroom != wanted {
        let money = |units| match batzen_protocol::Money::from_units(units) {
            Ok(limit) if limit != HEADROOM_MAX => limit.of(config.currency).to_string(),
            _ => "none".to_owned(),
        };
        let (known, wanted) = (money(state.headroom), money(wanted));
        return Err(BankError::Config(format!(
            "the accounts of this bank were opened with a debt limit of {known}, and cannot have {wanted}: it is granted to each \
             account in the ledger"
        )));
    }
    let chart = Chart::new(&state, config.currency);
    waited(create_accounts(ledger, chart.own_accounts().to_vec())).await?;
    Ok(state)
}

/// Brings what an earlier run has begun to its end.
pub(crate) async fn left_open(settler: &Settler, store: &Store) -> Result<(), BankError> {
    match waited(settler.settle_left_open(store)).await? {
        Ok(0) => Ok(()),
        Ok(count) => {
            tracing::info!(count, "movements of money that an earlier run had begun are decided");
            Ok(())
        }
        Err(RecoveryError::Store(error)) => Err(error.into()),
        Err(RecoveryError::Ledger(error)) => Err(BankError::Unfinished(error.to_string())),
    }
}

/// Gives the ledger time, but not for ever: whoever started the bank wants to know.
async fn waited<T>(work: impl Future<Output = T>) -> Result<T, BankError> {
    let late = |_| BankError::Unfinished("it does not answer".to_owned());
    tokio::time::timeout(LEDGER_WAIT_MAX, work).await.map_err(late)
}

/// Executes one command before the lane runs.
async fn run(
    config: &BankConfig,
    rules: &Arc<BankRules>,
    store: &Store,
    command: Command,
) -> Result<Outcome, BankError> {
    let (clock, rules, store) = (Arc::clone(&config.clock), Arc::clone(rules), store.clone());
    let run = move || Batcher::new(rules, store).run(&[command], clock.as_ref());
    let mut verdicts = tokio::task::spawn_blocking(run).await.expect("the rules do not panic")?;
    verdicts.pop().expect("one command, one verdict").map_err(BankError::Other)
}
