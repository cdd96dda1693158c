//! Checks what an exchange has published about its debts against its rows, and confirms it.
//!
//! Confirmed are epochs of which this is true: the statements form a chain from the first on, and are those that this
//! auditor saw before; each bucket leads to its root, and the totals add up; each leaf is a row with this amount; no leaf is
//! in two epochs; and every row from an hour before the end of the last epoch, or earlier, is in one.

mod rows;

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, EddsaSignature, HashCode, ShortHash};
use batzen_http::client::{Client, ClientOptions};
use batzen_protocol::liabilities::evidence::{Broken, Fraud, Rewritten, is_due};
use batzen_protocol::liabilities::{
    Body, Bucket, Confirmation, Evidence, Head, Index, Kind, Part, Statement, files, parse, to_json, tree,
};
use batzen_protocol::signatures::SignedMessage;
use batzen_protocol::{MoneySum, Timestamp};
use batzen_service::storage::StoreConfig;
use batzen_store::{Store, StoreError};
use batzen_tables::auditor::copy::{FeedPositionKey, FeedPositions};
use serde::{Deserialize, Serialize};

use crate::live;

pub(crate) use rows::Rows;

/// The subdirectory of the auditor's data for what this check keeps.
const PART: &str = "liabilities";
/// The key of what the last check saw.
const SEEN: &str = "seen";
/// The longest document that is read, in bytes.
const DOCUMENT_BYTES_MAX: usize = 64 << 20;

/// Why the check could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LiabilitiesError {
    /// A document cannot be fetched.
    #[error("{document}: {reason}")]
    Fetch {
        /// Its name.
        document: String,
        /// Why.
        reason: String,
    },
    /// The exchange has published nothing.
    #[error("the exchange has published nothing")]
    Nothing,
    /// The exchange's rows cannot be read.
    #[error("the exchange's rows: {0}")]
    Rows(#[from] StoreError),
    /// A file of the auditor cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of the auditor is damaged.
    #[error("{path}: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
}

/// Where the published files are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// At a server: the URL of the index.
    Url(String),
    /// In a directory.
    Directory(PathBuf),
}

impl Source {
    /// Fetches a document. `None` if it is not there.
    async fn fetch(&self, client: &Client, document: &str) -> Result<Option<Vec<u8>>, LiabilitiesError> {
        let failed = |reason: String| LiabilitiesError::Fetch { document: document.to_owned(), reason };
        match self {
            Self::Directory(dir) => match std::fs::read(dir.join(format!("{document}.json"))) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(failed(error.to_string())),
            },
            Self::Url(url) => {
                let served = document.strip_suffix(files::INDEX).unwrap_or(document);
                let url = format!("{}/{served}", url.trim_end_matches('/'));
                let reply = client.get(url.trim_end_matches('/')).send().await;
                let reply = reply.map_err(|error| failed(error.to_string()))?;
                match reply.status {
                    200 => Ok(Some(reply.body.into())),
                    404 => Ok(None),
                    status => Err(failed(format!("HTTP {status}"))),
                }
            }
        }
    }

    async fn get<T: serde::de::DeserializeOwned>(
        &self,
        client: &Client,
        document: &str,
    ) -> Result<Option<Result<T, String>>, LiabilitiesError> {
        Ok(self.fetch(client, document).await?.map(|bytes| parse(&bytes)))
    }
}

/// A rule that an exchange broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Broke {
    /// A document is missing, malformed, or does not lead to the root that the statement names.
    Document,
    /// A statement is not signed, or does not follow from the one before it.
    Statement,
    /// A statement is another one than in an earlier check, or is gone.
    Rewritten,
    /// A denomination has other terms than the master key signed, or is not listed.
    Terms,
    /// A leaf is no row.
    NoRow,
    /// A leaf counts another amount than its row.
    Amount,
    /// A leaf is in two epochs.
    Twice,
    /// A row that had to be in an epoch is in none.
    Omitted,
    /// A row contradicts others.
    Row,
}

/// The findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    pub(crate) rule: Broke,
    /// The epoch, if it is about one.
    pub epoch: Option<u64>,
    /// In plain words.
    pub text: String,
    /// By how much the exchange's debts are wrong, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) amount: Option<String>,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiabilitiesOutcome {
    /// Number of epochs that there are.
    pub epochs: u64,
    /// The end of the last one that was judged.
    pub end: Option<Timestamp>,
    /// The exchange's debt for its coins by the last statement.
    pub outstanding: Option<String>,
    /// Number of leaves that there are.
    pub leaves: u64,
    /// The findings. Nothing is confirmed unless this is empty.
    pub findings: Vec<Found>,
    /// Epochs that are newer than the copy of the rows, and were not judged.
    pub too_new: Vec<u64>,
    /// Epochs that are confirmed now.
    pub confirmed: Vec<u64>,
    /// Proofs of fraud that others can check.
    #[serde(skip)]
    pub evidence: Vec<Evidence>,
}

/// The checks to make.
#[derive(Debug, Clone)]
pub struct Request {
    /// Where the published files are.
    pub source: Source,
    /// Where the exchange's rows are, or a copy of them.
    pub store: StoreConfig,
    /// Whether it is the copy that the auditor made by following the exchange.
    pub is_own_copy: bool,
    /// The exchange's master key.
    pub master_pub: EddsaPublicKey,
    /// The directory of the auditor's data.
    pub data_dir: PathBuf,
    /// The time.
    pub now: Timestamp,
}

/// The state that is kept from check to check.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Seen {
    heads: Vec<Head>,
    /// Leaves of rows without a date that no epoch counted, with the time at which they were first there.
    #[serde(default)]
    undated: BTreeMap<String, Timestamp>,
}

/// The directory of what is kept.
#[must_use]
pub(crate) fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join(PART)
}

/// The file of an epoch's confirmation.
#[must_use]
pub(crate) fn confirmation(data_dir: &Path, epoch: u64) -> PathBuf {
    directory(data_dir).join(format!("{epoch}.json"))
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> LiabilitiesError {
    let path = path.to_owned();
    |source| LiabilitiesError::Io { path, source }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), LiabilitiesError> {
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).map_err(at(dir))?;
    let beside = path.with_extension("new");
    let write = || {
        let mut file = std::fs::File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)?;
        std::fs::File::open(dir)?.sync_all()
    };
    write().map_err(at(path))
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, LiabilitiesError> {
    match std::fs::read(path) {
        Ok(bytes) => {
            let parsed =
                parse(&bytes).map_err(|reason| LiabilitiesError::Damaged { path: path.to_owned(), reason });
            parsed.map(Some)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(at(path)(error)),
    }
}

/// A leaf that is published: the epoch, and what it counts.
type Published = HashMap<(HashCode, Kind), HashMap<ShortHash, (u64, MoneySum)>>;

struct Checker<'a> {
    request: &'a Request,
    client: Client,
    findings: Vec<Found>,
    evidence: Vec<Evidence>,
}

impl Checker<'_> {
    fn found(&mut self, rule: Broke, epoch: impl Into<Option<u64>>, text: impl Into<String>) {
        self.findings.push(Found { rule, epoch: epoch.into(), text: text.into(), amount: None });
    }

    fn found_amount(&mut self, rule: Broke, epoch: Option<u64>, text: String, units: u128) {
        let amount = Some(MoneySum::from_units(units).to_string());
        self.findings.push(Found { rule, epoch, text, amount });
    }

    /// Fetches and checks all statements. Ends at the first that is not right.
    async fn statements(&mut self, index: &Index, seen: &Seen) -> Result<Vec<Statement>, LiabilitiesError> {
        let master_pub = self.request.master_pub;
        let mut all: Vec<Statement> = Vec::new();
        if (index.epochs.len()) < seen.heads.len() {
            let text = format!("epoch {} was published, and is gone", index.epochs.len() + 1);
            self.found(Broke::Rewritten, index.epochs.len() as u64 + 1, text);
        }
        for (published, epoch) in index.epochs.iter().zip(1..) {
            let document = files::statement(epoch);
            let statement: Statement = match self.request.source.get(&self.client, &document).await? {
                Some(Ok(statement)) => statement,
                Some(Err(reason)) => {
                    self.found(Broke::Document, epoch, format!("the statement is malformed: {reason}"));
                    return Ok(all);
                }
                None => {
                    self.found(Broke::Document, epoch, "the statement is missing");
                    return Ok(all);
                }
            };
            if let Err(fault) = statement.check_signature(&master_pub) {
                self.found(Broke::Statement, epoch, format!("the statement is not right: {fault}"));
                return Ok(all);
            }
            let head = statement.head();
            if (published.epoch, published.h_statement) != (epoch, head.h_statement) || head.epoch != epoch {
                self.found(Broke::Document, epoch, "the index names another statement");
                return Ok(all);
            }
            let known = usize::try_from(epoch - 1).ok().and_then(|place| seen.heads.get(place));
            if let Some(known) = known.filter(|known| known.h_statement != head.h_statement) {
                self.found(
                    Broke::Rewritten,
                    epoch,
                    "the exchange has signed another statement for this epoch",
                );
                let both = Rewritten { one: known.clone(), other: head };
                self.evidence.push(Evidence::new(master_pub, Fraud::Rewritten(Box::new(both))));
            }
            let before = all.last();
            if let Err(fault) = statement.statement.check_after(before.map(|before| &before.statement)) {
                self.found(Broke::Statement, epoch, format!("the statement is not right: {fault}"));
                let both = Broken { before: before.cloned(), statement };
                self.evidence.push(Evidence::new(master_pub, Fraud::Broken(Box::new(both))));
                return Ok(all);
            }
            all.push(statement);
        }
        Ok(all)
    }

    /// Fetches and checks all buckets of an epoch.
    async fn leaves(&mut self, statement: &Statement, all: &mut Published) -> Result<u64, LiabilitiesError> {
        let (body, mut count) = (&statement.statement, 0);
        for entry in &body.denominations {
            for kind in Kind::ALL {
                let part: &Part = entry.part(kind);
                if part.root == tree::Node::empty() {
                    continue;
                }
                if !part.hides_leaves() {
                    let text = format!("buckets of {} are too small for privacy", entry.h_denom_pub);
                    self.found(Broke::Document, body.epoch, text);
                }
                for place in 0..1u32 << part.bits.min(tree::BITS_MAX) {
                    let document = files::bucket(body.epoch, &entry.h_denom_pub, kind, place, part.bits);
                    let bucket: Bucket = match self.request.source.get(&self.client, &document).await? {
                        Some(Ok(bucket)) => bucket,
                        Some(Err(reason)) => {
                            self.found(
                                Broke::Document,
                                body.epoch,
                                format!("{document} is malformed: {reason}"),
                            );
                            continue;
                        }
                        None => {
                            self.found(Broke::Document, body.epoch, format!("{document} is missing"));
                            continue;
                        }
                    };
                    if let Err(fault) = bucket.check(place, part.bits, &part.root) {
                        self.found(Broke::Document, body.epoch, format!("{document}: {fault}"));
                        continue;
                    }
                    let tree = all.entry((entry.h_denom_pub, kind)).or_default();
                    for leaf in bucket.leaves {
                        count += 1;
                        if let Some((earlier, _)) = tree.insert(leaf.hash, (body.epoch, leaf.sum)) {
                            let text = format!("leaf {} is also in epoch {earlier}", leaf.hash);
                            self.found_amount(Broke::Twice, Some(body.epoch), text, leaf.sum.units());
                        }
                    }
                }
            }
        }
        Ok(count)
    }

    fn terms(&mut self, statement: &Statement, rows: &rows::Rows) {
        let body = &statement.statement;
        for entry in &body.denominations {
            let known = rows.denoms.get(&entry.h_denom_pub);
            let is_right = known.is_some_and(|known| {
                (known.value.units(), known.expire_legal) == (entry.value.units(), entry.until)
            });
            if !is_right {
                let text = format!("denomination {} has other terms than its rows", entry.h_denom_pub);
                self.found(Broke::Terms, body.epoch, text);
            }
        }
        for (name, row) in &rows.denoms {
            // Denominations that came after the epoch was read are in the next one.
            let has_rows = Kind::ALL.iter().any(|kind| {
                let leaves = rows.ledger.get(&(*name, *kind));
                leaves.is_some_and(|leaves| {
                    leaves.values().any(|due| due.date.is_some_and(|date| is_due(body.end, date)))
                })
            });
            if row.expire_legal > body.end && has_rows && body.entry(name).is_none() {
                self.found(Broke::Terms, body.epoch, format!("denomination {name} is not listed"));
            }
        }
    }

    /// Compares leaves with rows.
    fn compare(
        &mut self,
        last: &Statement,
        (published, rows): (&Published, &rows::Rows),
        confirmed: u64,
        seen: &mut Seen,
    ) {
        let end = last.statement.end;
        for ((denom, kind), leaves) in published {
            let due = rows.ledger.get(&(*denom, *kind));
            // Rows may go after a denomination's legal end.
            let is_over = rows.denoms.get(denom).is_some_and(|row| row.expire_legal <= end);
            for (hash, (epoch, sum)) in leaves {
                match due.and_then(|due| due.get(hash)) {
                    Some(due) if due.units == sum.units() => {}
                    Some(due) => {
                        let (name, serial) = (due.table, due.serial);
                        let text = format!(
                            "{} leaf {hash} counts {sum}, but row {serial} of {name} has {}",
                            kind.name(),
                            MoneySum::from_units(due.units)
                        );
                        self.found_amount(Broke::Amount, Some(*epoch), text, due.units.abs_diff(sum.units()));
                    }
                    None if is_over || *epoch <= confirmed => {}
                    None => {
                        let text = format!("{} leaf {hash} of {sum} is no row", kind.name());
                        self.found_amount(Broke::NoRow, Some(*epoch), text, sum.units());
                    }
                }
            }
        }
        let mut undated = BTreeMap::new();
        for ((denom, kind), due) in &rows.ledger {
            if rows.denoms.get(denom).is_none_or(|row| row.expire_legal <= end) {
                continue;
            }
            let leaves = published.get(&(*denom, *kind));
            for (hash, row) in due {
                if leaves.is_some_and(|leaves| leaves.contains_key(hash)) {
                    continue;
                }
                let date = row.date.unwrap_or_else(|| {
                    let name = hash.to_string();
                    let first = seen.undated.get(&name).copied().unwrap_or(self.request.now);
                    undated.insert(name, first);
                    first
                });
                if is_due(end, date) {
                    let (name, serial) = (row.table, row.serial);
                    let text =
                        format!("row {serial} of {name}, from {date}, is in no epoch ({})", kind.name());
                    self.found_amount(Broke::Omitted, Some(last.statement.epoch), text, row.units);
                }
            }
        }
        seen.undated = undated;
    }
}

/// Checks everything, and confirms the epochs that are right with the auditor's key, if there is one.
///
/// # Errors
/// If files or rows cannot be read.
pub async fn check(
    request: &Request,
    key: Option<&EddsaPrivateKey>,
) -> Result<LiabilitiesOutcome, LiabilitiesError> {
    examine(request, &request.store).await?.confirm(request, key)
}

/// The result of a check of which nothing is confirmed yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Examined {
    outcome: LiabilitiesOutcome,
    /// Proofs of fraud that others can check.
    evidence: Vec<Evidence>,
    /// The statements that may be confirmed.
    to_confirm: Vec<Body>,
}

impl Examined {
    /// Confirms the epochs that are right with the auditor's key, if there is one.
    ///
    /// # Errors
    /// If files cannot be written.
    pub fn confirm(
        self,
        request: &Request,
        key: Option<&EddsaPrivateKey>,
    ) -> Result<LiabilitiesOutcome, LiabilitiesError> {
        let Self { mut outcome, evidence, to_confirm } = self;
        if let Some(key) = key {
            for body in &to_confirm {
                let auditor_sig: EddsaSignature = Confirmation::message(body, request.now).sign(key);
                let document = Confirmation {
                    master_pub: body.master_pub,
                    epoch: body.epoch,
                    h_statement: body.hash(),
                    time: request.now,
                    auditor_pub: key.public_key(),
                    auditor_sig,
                };
                write(&confirmation(&request.data_dir, body.epoch), &to_json(&document))?;
                outcome.confirmed.push(body.epoch);
            }
        }
        outcome.evidence = evidence;
        Ok(outcome)
    }
}

/// Checks everything. `place` has the exchange's rows.
pub(crate) async fn examine(request: &Request, place: &impl RowSource) -> Result<Examined, LiabilitiesError> {
    let options = ClientOptions { max_reply_bytes: DOCUMENT_BYTES_MAX, ..ClientOptions::default() };
    let client = Client::new(&options).map_err(|error| LiabilitiesError::Fetch {
        document: files::INDEX.to_owned(),
        reason: error.to_string(),
    })?;
    let mut checker = Checker { request, client, findings: Vec::new(), evidence: Vec::new() };
    let seen_path = directory(&request.data_dir).join(format!("{SEEN}.json"));
    let mut seen: Seen = read(&seen_path)?.unwrap_or_default();
    let index: Index = match request.source.get(&checker.client, files::INDEX).await? {
        Some(Ok(index)) => index,
        Some(Err(reason)) => {
            return Err(LiabilitiesError::Fetch { document: files::INDEX.to_owned(), reason });
        }
        None => return Err(LiabilitiesError::Nothing),
    };
    let statements = checker.statements(&index, &seen).await?;
    // The copy first: what is published and not in it was published later, or is no row.
    let (rows, moment) = place.read_rows(request)?;
    for fault in &rows.faults {
        checker.found(Broke::Row, None, fault.clone());
    }
    let (judged, too_new): (Vec<_>, Vec<_>) =
        statements.iter().partition(|statement| statement.statement.taken <= moment);
    let mut published = Published::new();
    let mut leaves = 0;
    for statement in &judged {
        leaves += checker.leaves(statement, &mut published).await?;
    }
    let confirmed_before = confirmed(&request.data_dir, &judged)?;
    if let Some(last) = judged.last() {
        checker.terms(last, &rows);
        checker.compare(last, (&published, &rows), confirmed_before, &mut seen);
    }
    let mut to_confirm = Vec::new();
    if checker.findings.is_empty() {
        seen.heads = statements.iter().map(Statement::head).collect();
        let fresh = judged.iter().filter(|found| found.statement.epoch > confirmed_before);
        to_confirm.extend(fresh.map(|found| found.statement.clone()));
    } else {
        // What was seen stays as it was first seen; only new epochs are added.
        let known = seen.heads.len();
        seen.heads.extend(statements.iter().skip(known).map(Statement::head));
    }
    write(&seen_path, &to_json(&seen))?;
    let last = judged.last().map(|last| &last.statement);
    let outcome = LiabilitiesOutcome {
        epochs: index.epochs.len() as u64,
        end: last.map(|last| last.end),
        outstanding: last.and_then(|last| last.outstanding().map(|sum| format!("{}:{sum}", last.currency))),
        leaves,
        findings: checker.findings,
        too_new: too_new.iter().map(|statement| statement.statement.epoch).collect(),
        confirmed: Vec::new(),
        evidence: Vec::new(),
    };
    Ok(Examined { outcome, evidence: checker.evidence, to_confirm })
}

/// Where the exchange's rows are.
pub(crate) trait RowSource {
    /// The rows, and the time up to which they are complete. Blocks.
    fn read_rows(&self, request: &Request) -> Result<(Rows, Timestamp), LiabilitiesError>;
}

/// A place that no other process has open.
impl RowSource for StoreConfig {
    fn read_rows(&self, request: &Request) -> Result<(Rows, Timestamp), LiabilitiesError> {
        let service = if request.is_own_copy {
            &batzen_service::storage::AUDITOR_COPY
        } else {
            &batzen_service::storage::EXCHANGE
        };
        let store: Store = self.open(service, 1)?;
        let found = if request.is_own_copy {
            rows_of_copy(&store)
        } else {
            rows::read(&store).map(|rows| (rows, request.now)).map_err(LiabilitiesError::Rows)
        };
        store.close()?;
        found
    }
}

/// The rows of a copy, and the last stored time at which it was complete.
pub(crate) fn rows_of_copy(store: &Store) -> Result<(Rows, Timestamp), LiabilitiesError> {
    live::require_rows(store)?;
    let complete = live::complete(store)?;
    let position = store.get::<FeedPositions>(&FeedPositionKey { id: 0 })?;
    if !position.is_some_and(|found| found.row.is_whole) {
        let reason = "the copy is not whole: a snapshot is being loaded; try again later";
        return Err(StoreError::Backend(reason.to_owned()).into());
    }
    Ok((rows::read(store)?, complete))
}

/// The last epoch of an unbroken series that this auditor has confirmed.
fn confirmed(data_dir: &Path, statements: &[&Statement]) -> Result<u64, LiabilitiesError> {
    let mut last = 0;
    for statement in statements {
        let body = &statement.statement;
        let found: Option<Confirmation> = read(&confirmation(data_dir, body.epoch))?;
        if found.is_none_or(|found| found.h_statement != body.hash()) {
            break;
        }
        last = body.epoch;
    }
    Ok(last)
}
