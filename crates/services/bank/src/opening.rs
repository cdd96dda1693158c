//! The start of a bank: its identity, its ledger, and its open intents.

use std::sync::Arc;
use std::time::Duration;

use batzen_engine::Batcher;
use batzen_ledger::{Ledger, MemoryLedger, RetryingLedger};
use batzen_ledger_service::net::LedgerAddress;
use batzen_ledger_service::store::{DurableLedger, DurableOptions, system_clock};
use batzen_service::storage::{self, StoreConfig};
use batzen_store::{Store, StoreError};
use batzen_tables::bank::{BankStateKey, BankStateRow, OldBankStates};

use crate::BankError;
use crate::chart::Chart;
use crate::config::BankConfig;
use crate::rules::{BankRules, HEADROOM_MAX, Open, TypedCommand};
use crate::settler::{RecoveryError, Settler, create_accounts, settle_left_open};

/// Time that a start waits for the ledger's answers.
const LEDGER_WAIT_MAX: Duration = Duration::from_secs(30);

/// Store and ledger of a bank.
pub(crate) struct OpenBooks {
    /// Names and transactions.
    pub store: Store,
    /// The ledger in use.
    pub ledger: Arc<dyn Ledger>,
    /// For closing in order and for metrics, if it is in this process.
    pub(crate) own: Option<Arc<DurableLedger>>,
    /// Whether its log is in the bank's store.
    pub(crate) is_joint: bool,
}

/// Where earlier builds keep an embedded ledger: in a store of its own, below the bank's. In a database it
/// has its own schema.
const LEDGER_DIR: &str = "ledger";

/// Returns whether an embedded ledger shares the bank's store: if that is a directory, unless an earlier
/// build made a separate one.
fn is_joint(place: &StoreConfig) -> bool {
    place.dir().is_some_and(|dir| !dir.join(LEDGER_DIR).exists())
}

/// Opens store and ledger.
pub(crate) async fn open(config: &BankConfig) -> Result<OpenBooks, BankError> {
    let clock = Arc::clone(&config.clock);
    let place = config.store.clone();
    if !matches!(config.ledger, LedgerAddress::Embedded) {
        let open = move || place.open(&storage::BANK, 1);
        let store = tokio::task::spawn_blocking(open).await.expect("opening a store does not panic")?;
        let ledger = batzen_ledger_service::net::connect_when_ready(&config.ledger).await?;
        return Ok(OpenBooks { store, ledger, own: None, is_joint: false });
    }
    let open = move || {
        let clock = move || clock.now().as_micros().saturating_mul(1000);
        if place.is_memory() {
            let store = place.open(&storage::BANK, 1)?;
            return Ok(OpenBooks {
                store,
                ledger: Arc::new(MemoryLedger::new(clock)),
                own: None,
                is_joint: false,
            });
        }
        let (store, own) = open_embedded(&place, |place, service| place.open(service, 1), clock)?;
        let ledger = Arc::clone(&own) as Arc<dyn Ledger>;
        Ok(OpenBooks { store, ledger, own: Some(own), is_joint: is_joint(&place) })
    };
    tokio::task::spawn_blocking(open).await.expect("opening a store does not panic")
}

fn open_embedded(
    place: &StoreConfig,
    open: fn(&StoreConfig, &storage::Service) -> Result<Store, StoreError>,
    clock: impl Fn() -> u64 + Send + 'static,
) -> Result<(Store, Arc<DurableLedger>), BankError> {
    let (store, log) = if is_joint(place) {
        let store = open(place, &storage::BANK_WITH_LEDGER)?;
        (store.clone(), store)
    } else {
        let log = open(&place.part(LEDGER_DIR), &storage::LEDGER)?;
        (open(place, &storage::BANK)?, log)
    };
    let ledger = DurableLedger::start(log, clock, DurableOptions::default())?;
    Ok((store, Arc::new(ledger)))
}

/// Opens store and embedded ledger of a bank that is not running, for tools that only read.
///
/// # Errors
/// If they are in use or damaged.
pub fn embedded_books(place: &StoreConfig) -> Result<(Store, Arc<DurableLedger>), BankError> {
    open_embedded(place, StoreConfig::open_to_read, system_clock)
}

/// Creates the bank in an empty store, or checks that it is the requested one. Afterwards its own accounts
/// exist in the ledger.
pub(crate) async fn books(
    config: &BankConfig,
    rules: BankRules,
    store: Store,
    ledger: &RetryingLedger,
) -> Result<BankStateRow, BankError> {
    let mut random = [[0; 16]; 2];
    random.iter_mut().for_each(|bytes| batzen_crypto::fill_random(bytes));
    let [password_salt, identity] = random;
    if store.get::<OldBankStates>(&BankStateKey::ONLY)?.is_some() {
        return Err(BankError::EarlierStore);
    }
    let open = Open { currency: config.currency, password_salt, identity };
    let state = run(config, rules, &store, open).await?;
    let wanted = config.policy().headroom();
    if state.headroom != wanted {
        let money = |units| match batzen_protocol::Money::from_units(units) {
            Ok(limit) if limit != HEADROOM_MAX => limit.of(config.currency).to_string(),
            _ => "none".to_owned(),
        };
        let (known, wanted) = (money(state.headroom), money(wanted));
        return Err(BankError::DebtLimit { known, wanted });
    }
    let chart = Chart::new(&state, config.currency);
    waited(create_accounts(ledger, chart.own_accounts().to_vec())).await?;
    Ok(state)
}

/// Settles the open intents of an earlier run.
pub(crate) async fn left_open(settler: &Settler, store: &Store) -> Result<(), BankError> {
    match waited(settle_left_open(settler, store)).await? {
        Ok(0) => Ok(()),
        Ok(count) => {
            tracing::info!(count, "settled the open intents of an earlier run");
            Ok(())
        }
        Err(RecoveryError::Store(error)) => Err(error.into()),
        Err(RecoveryError::Ledger(error)) => Err(BankError::Unfinished(error.to_string())),
    }
}

/// Bounds the wait for the ledger, so that a start that cannot succeed fails.
async fn waited<T>(work: impl Future<Output = T>) -> Result<T, BankError> {
    let late = |_| BankError::Unfinished("it does not answer".to_owned());
    tokio::time::timeout(LEDGER_WAIT_MAX, work).await.map_err(late)
}

/// Executes one command before the lane runs.
async fn run<C: TypedCommand>(
    config: &BankConfig,
    rules: BankRules,
    store: &Store,
    command: C,
) -> Result<C::Answer, BankError> {
    let (clock, store, command) = (Arc::clone(&config.clock), store.clone(), command.into());
    let run = move || Batcher::new(Arc::new(rules), store).run(&[command], clock.as_ref());
    let mut verdicts = tokio::task::spawn_blocking(run).await.expect("the rules do not panic")?;
    verdicts.pop().expect("one command, one verdict").map(C::answer).map_err(BankError::Other)
}
