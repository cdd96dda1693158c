//! The auditor's rows for its programs, whether or not its service runs.
//!
//! A database is open to all. An embedded store is open in one process only: if that is the running service, it is asked
//! over its local socket (`link`).

use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;

use crate::audit::Confirmation;
use batzen_crypto::{EddsaPublicKey, EddsaSignature};
use batzen_engine::{Batcher, Clock};
use batzen_protocol::Timestamp;
use batzen_protocol::api::auditor::AuditedExchange;
use batzen_protocol::signatures::{MasterSigningKeyRevoked, SignedMessage};
use batzen_store::{Store, StoreError};
use batzen_tables::auditor::{
    AuditedExchangeKey, AuditedExchangeRow, AuditedExchanges, DepositConfirmationKey, DepositConfirmations,
    SigningKeyRevocationKey, SigningKeyRevocationRow, SigningKeys,
};

use crate::config::{AuditorConfig, is_base_url};
use crate::confirmation::CONFIRMATIONS_MAX;
use crate::link::{self, Ask, LinkError, Told};
use crate::live::REMOVED_AT_ONCE;
use crate::rules::{
    AddExchange, Answer, AuditorRules, Command, Forget, Open, Refusal, RemoveExchange, Revoke,
};

pub use crate::confirmation::Numbered;

/// Why the auditor's rows could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum BooksError {
    /// The store cannot be opened, read or written.
    #[error("the auditor's store: {0}")]
    Store(#[from] StoreError),
    /// The change is not allowed.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The URL is not that of an exchange.
    #[error("{0}: expected a URL that starts with http:// or https:// and ends with /")]
    Url(String),
    /// The revocation is not signed by the exchange's master key.
    #[error("the revocation is not signed by the exchange's master key")]
    Unsigned,
    /// The running service has the store, and could not be asked, or refused.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// The auditor's rows.
pub struct Books {
    place: Backing,
    clock: Arc<dyn Clock>,
}

enum Backing {
    Open { store: Store, batcher: Box<Batcher<AuditorRules>> },
    Service(PathBuf),
}

impl Books {
    /// Opens the rows, or finds the running service.
    ///
    /// # Errors
    /// [`BooksError`] if neither is possible.
    pub fn open(config: &AuditorConfig) -> Result<Self, BooksError> {
        let clock = Arc::clone(&config.clock);
        let store = match config.service_store().open(&batzen_service::storage::AUDITOR, 1) {
            Err(StoreError::InUse(_)) if !config.store.is_database() => {
                return Ok(Self { place: Backing::Service(config.socket()), clock });
            }
            opened => opened?,
        };
        let books = Self::over(store, clock);
        books.run(Open { currency: config.currency })?;
        Ok(books)
    }

    /// Works on an open store.
    fn over(store: Store, clock: Arc<dyn Clock>) -> Self {
        let batcher = Box::new(Batcher::new(Arc::new(AuditorRules), store.clone()));
        Self { place: Backing::Open { store, batcher }, clock }
    }

    fn run(&self, command: impl Into<Command>) -> Result<Answer, BooksError> {
        let Backing::Open { batcher, .. } = &self.place else { unreachable!("the service is asked instead") };
        let verdicts = batcher.run(&[command.into()], &*self.clock)?;
        Ok(verdicts.into_iter().next().expect("one verdict a command")?)
    }

    /// The store, if this process has it open.
    fn store(&self) -> Option<&Store> {
        match &self.place {
            Backing::Open { store, .. } => Some(store),
            Backing::Service(_) => None,
        }
    }

    fn ask(&self, ask: &Ask) -> Result<Told, BooksError> {
        match &self.place {
            Backing::Open { .. } => self.answer(ask),
            Backing::Service(socket) => Ok(link::ask(socket, ask)?),
        }
    }

    /// Does what a program asks for.
    fn answer(&self, ask: &Ask) -> Result<Told, BooksError> {
        let store = self.store().expect("the rows are open here");
        match ask {
            Ask::Exchanges => exchanges(store).map(Told::Exchanges).map_err(BooksError::Store),
            Ask::Confirmations { master_pub, after, limit } => {
                let limit = (*limit).min(CONFIRMATIONS_MAX);
                Ok(Told::Confirmations(confirmations(store, master_pub, *after, limit)?))
            }
            Ask::Report { .. } | Ask::Checking | Ask::Liabilities { .. } | Ask::Note { .. } => {
                unreachable!("only the service is asked for reports")
            }
            Ask::AddExchange { .. } | Ask::RemoveExchange { .. } | Ask::Revoke { .. } => {
                self.run(command(ask, self.clock.now())?.expect("it changes rows")).map(Told::Done)
            }
        }
    }

    /// The audited exchanges, in the order in which they were added.
    ///
    /// # Errors
    /// [`BooksError`].
    pub fn exchanges(&self) -> Result<Vec<AuditedExchange>, BooksError> {
        match self.ask(&Ask::Exchanges)? {
            Told::Exchanges(exchanges) => Ok(exchanges),
            _ => Err(LinkError::Nonsense.into()),
        }
    }

    /// Adds an exchange.
    ///
    /// # Errors
    /// [`BooksError`], also if it is audited already.
    pub fn add_exchange(&self, master_pub: EddsaPublicKey, url: &str) -> Result<(), BooksError> {
        self.ask(&Ask::AddExchange { master_pub, url: url.to_owned() }).map(|_| ())
    }

    /// Removes an exchange. Its confirmations stay.
    ///
    /// # Errors
    /// [`BooksError`], also if it is not audited.
    pub fn remove_exchange(&self, master_pub: EddsaPublicKey) -> Result<(), BooksError> {
        self.ask(&Ask::RemoveExchange { master_pub }).map(|_| ())
    }

    /// Keeps the revocation of a signing key, for example one found in a copy of the exchange's tables. Idempotent.
    ///
    /// # Errors
    /// [`BooksError`], also if it is not signed by the master key.
    pub fn revoke(
        &self,
        master_pub: EddsaPublicKey,
        exchange_pub: EddsaPublicKey,
        master_sig: EddsaSignature,
    ) -> Result<(), BooksError> {
        self.ask(&Ask::Revoke { master_pub, exchange_pub, master_sig }).map(|_| ())
    }

    /// The confirmations of an exchange that came after the one with this serial (0: all), at most `limit` and at most
    /// `CONFIRMATIONS_MAX`, in their order.
    ///
    /// # Errors
    /// [`BooksError`].
    pub fn confirmations(
        &self,
        master_pub: EddsaPublicKey,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Numbered>, BooksError> {
        match self.ask(&Ask::Confirmations { master_pub, after, limit })? {
            Told::Confirmations(confirmations) => Ok(confirmations),
            _ => Err(LinkError::Nonsense.into()),
        }
    }

    /// Closes the store, if it is open here.
    ///
    /// # Errors
    /// If its last checkpoint cannot be written. All changes are durable regardless.
    pub fn close(self) -> Result<(), BooksError> {
        self.store().map_or(Ok(()), |store| Ok(store.close()?))
    }
}

/// The command for what a program asks for; none if it only reads.
pub(crate) fn command(ask: &Ask, now: Timestamp) -> Result<Option<Command>, BooksError> {
    Ok(Some(match ask {
        Ask::Exchanges
        | Ask::Confirmations { .. }
        | Ask::Report { .. }
        | Ask::Checking
        | Ask::Liabilities { .. }
        | Ask::Note { .. } => {
            return Ok(None);
        }
        Ask::AddExchange { master_pub, url } => {
            if !is_base_url(url) {
                return Err(BooksError::Url(url.clone()));
            }
            let row = AuditedExchangeRow { url: url.clone(), added: now };
            AddExchange { key: AuditedExchangeKey { master_pub: *master_pub }, row }.into()
        }
        Ask::RemoveExchange { master_pub } => {
            RemoveExchange { key: AuditedExchangeKey { master_pub: *master_pub } }.into()
        }
        Ask::Revoke { master_pub, exchange_pub, master_sig } => {
            let message = MasterSigningKeyRevoked { signkey_pub: *exchange_pub };
            if !message.verify(master_pub, master_sig) {
                return Err(BooksError::Unsigned);
            }
            let (master_pub, exchange_pub) = (*master_pub, *exchange_pub);
            Revoke {
                key: SigningKeyRevocationKey { master_pub, exchange_pub },
                row: SigningKeyRevocationRow { master_sig: *master_sig, seen: now },
            }
            .into()
        }
    }))
}

/// The audited exchanges, in the order in which they were added.
pub(crate) fn exchanges(store: &Store) -> Result<Vec<AuditedExchange>, StoreError> {
    let exchange = |found: batzen_store::Found<AuditedExchanges>| AuditedExchange {
        master_pub: found.key.master_pub,
        exchange_url: found.row.url,
    };
    Ok(store.all::<AuditedExchanges>()?.into_iter().map(exchange).collect())
}

/// The confirmations of an exchange after a serial.
pub(crate) fn confirmations(
    store: &Store,
    master_pub: &EddsaPublicKey,
    after: u64,
    limit: usize,
) -> Result<Vec<Numbered>, StoreError> {
    let Some(first) = after.checked_add(1) else { return Ok(Vec::new()) };
    let from = DepositConfirmations::position(master_pub, first);
    let to = DepositConfirmations::position(master_pub, u64::MAX);
    let found = store.range_positions::<DepositConfirmations>(
        DepositConfirmations::BY_SERIAL,
        Bound::Included(from),
        Bound::Included(to),
        limit,
        false,
    )?;
    Ok(found.into_iter().map(|found| Numbered { serial: found.serial, row: found.row }).collect())
}

/// All confirmations of an exchange after a serial.
pub(crate) fn confirmations_after(
    store: &Store,
    master_pub: EddsaPublicKey,
    mut after: u64,
) -> Result<Vec<Confirmation>, StoreError> {
    let mut all = Vec::new();
    loop {
        let page = confirmations(store, &master_pub, after, CONFIRMATIONS_MAX)?;
        let Some(last) = page.last() else { return Ok(all) };
        after = last.serial;
        all.extend(page.into_iter().map(Confirmation::from));
    }
}

/// The rows that were forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Signing keys.
    pub signing_keys: u64,
    /// Deposit confirmations.
    pub confirmations: u64,
}

/// Forgets signing keys whose signatures are no longer legally valid, and the confirmations that they have signed: the
/// exchange need not keep such deposits, so a check would miss them.
///
/// # Errors
/// If the store fails, or the running service has it open.
pub fn collect_garbage(books: &Books, now: Timestamp) -> Result<Forgotten, BooksError> {
    let Some(store) = books.store() else {
        return Err(LinkError::Refused("stop the auditor's service first: its store is in use".into()).into());
    };
    let all = store.all::<SigningKeys>()?;
    let (ended, valid): (Vec<_>, Vec<_>) = all.into_iter().partition(|found| found.key.end < now);
    let name = |key: &batzen_tables::auditor::SigningKeyKey| (key.master_pub, key.exchange_pub);
    let valid: std::collections::HashSet<_> = valid.iter().map(|found| name(&found.key)).collect();
    let over: std::collections::HashSet<_> =
        ended.iter().map(|found| name(&found.key)).filter(|key| !valid.contains(key)).collect();
    let mut confirmations: Vec<DepositConfirmationKey> = Vec::new();
    store.scan::<DepositConfirmations>(|found| {
        if over.contains(&(found.row.master_pub, found.row.exchange_pub)) {
            confirmations.push(found.key);
        }
        std::ops::ControlFlow::Continue(())
    })?;
    let forgotten = Forgotten { signing_keys: ended.len() as u64, confirmations: confirmations.len() as u64 };
    for confirmations in confirmations.chunks(REMOVED_AT_ONCE) {
        books.run(Forget { confirmations: confirmations.to_vec(), keys: Vec::new() })?;
    }
    let keys: Vec<_> = ended.into_iter().map(|found| found.key).collect();
    for keys in keys.chunks(REMOVED_AT_ONCE) {
        books.run(Forget { confirmations: Vec::new(), keys: keys.to_vec() })?;
    }
    Ok(forgotten)
}
