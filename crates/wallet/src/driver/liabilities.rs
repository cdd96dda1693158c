//! Checks what an exchange has published about its debts (`batzen wallet verify-exchange`).
//!
//! The server of the files sees which are fetched. So small epochs are fetched as a whole, which tells nothing. Of
//! large ones only the buckets of withdrawals are fetched by default: the exchange knows whose those are. What belongs
//! to one operation has a connection of its own. With a directory, nobody sees anything.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_protocol::Timestamp;
use batzen_protocol::liabilities::evidence::{Broken, Fraud, Gap, Omitted, Rewritten, is_due};
use batzen_protocol::liabilities::{
    Bucket, Confirmation, Evidence, Head, Index, Kind, Part, Receipt, Statement, files, parse, tree,
};

use super::{Wallet, WalletError};
use crate::core::CoreError;
use crate::core::http::{Context, HttpRequest};
use crate::core::liabilities::{self, Chain, Expected, Plan, Report};
use crate::core::state::OpId;
use crate::core::url::normalise_base_url;
use crate::transport::{HttpTransport, Transport, TransportError};

/// The longest document that is read from a directory, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Where the published files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// At the exchange.
    Exchange,
    /// At somebody who has a copy of all files: the URL of the index, ending in `/`.
    Mirror(String),
    /// In a directory.
    Directory(PathBuf),
}

/// Options of a check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Where the files are.
    pub source: Source,
    /// Whether payments and change are looked for in large epochs, too, although that narrows down whose they are.
    pub payments: bool,
    /// Whether to ask the exchange for receipts.
    pub receipts: bool,
    /// The auditor whose confirmation is wanted, with its key.
    pub auditor: Option<(String, EddsaPublicKey)>,
}

/// Fetches documents, on connections of its own.
#[derive(Clone)]
struct Fetcher {
    source: Source,
    exchange: String,
    transport: Arc<dyn Transport>,
}

fn bad(what: &'static str, reason: impl ToString) -> WalletError {
    CoreError::BadAnswer { what, status: 200, reason: reason.to_string() }.into()
}

/// Fetches an address. `None` if there is nothing.
async fn fetch(transport: &dyn Transport, url: String) -> Result<Option<Vec<u8>>, WalletError> {
    let answer = transport.send(&HttpRequest::get(Context::Info, url)).await?;
    match answer.status {
        200 => Ok(Some(answer.body)),
        404 => Ok(None),
        _ => Err(answer.refusal("liabilities").into()),
    }
}

impl Fetcher {
    fn new(source: &Source, exchange: &str) -> Result<Self, WalletError> {
        let transport = Arc::new(HttpTransport::new()?);
        Ok(Self { source: source.clone(), exchange: exchange.to_owned(), transport })
    }

    /// The same on other connections.
    fn apart(&self) -> Result<Self, WalletError> {
        Self::new(&self.source, &self.exchange)
    }

    async fn read(&self, document: &str) -> Result<Option<Vec<u8>>, WalletError> {
        // A server names a directory's index by the directory.
        let served = document.strip_suffix(files::INDEX).unwrap_or(document).trim_end_matches('/');
        let url = match &self.source {
            Source::Exchange => format!("{}liabilities/{served}", self.exchange),
            Source::Mirror(url) => format!("{url}{served}"),
            Source::Directory(dir) => {
                let path = dir.join(format!("{document}.json"));
                let failed = |error: std::io::Error| TransportError {
                    url: path.display().to_string(),
                    reason: error.to_string(),
                };
                return match std::fs::metadata(&path) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                    Ok(found) if found.len() > FILE_BYTES_MAX => {
                        Err(bad("liabilities", "a file is too large"))
                    }
                    Ok(_) => Ok(Some(std::fs::read(&path).map_err(failed)?)),
                    Err(error) => Err(failed(error).into()),
                };
            }
        };
        fetch(self.transport.as_ref(), url.trim_end_matches('/').to_owned()).await
    }

    async fn get<T: serde::de::DeserializeOwned>(
        &self,
        document: &str,
        what: &'static str,
    ) -> Result<T, WalletError> {
        let bytes = self.read(document).await?;
        let bytes = bytes.ok_or_else(|| bad(what, format!("{document} is not there")))?;
        parse(&bytes).map_err(|reason| bad(what, reason))
    }
}

/// A bucket's name: epoch, denomination, kind, place.
type Name = (u64, HashCode, Kind, u32);

/// Buckets that were fetched and checked.
#[derive(Default)]
struct Buckets {
    known: BTreeMap<Name, Bucket>,
    bytes: u64,
}

impl Buckets {
    async fn fetch(&mut self, fetcher: &Fetcher, name: Name, part: &Part) -> Result<(), WalletError> {
        let (epoch, denom, kind, place) = name;
        if self.known.contains_key(&name) {
            return Ok(());
        }
        let document = files::bucket(epoch, &denom, kind, place, part.bits);
        let bytes = fetcher.read(&document).await?;
        let bytes = bytes.ok_or_else(|| bad("bucket", format!("{document} is not there")))?;
        self.bytes += bytes.len() as u64;
        let bucket: Bucket = parse(&bytes).map_err(|reason| bad("bucket", reason))?;
        bucket
            .check(place, part.bits, &part.root)
            .map_err(|fault| bad("bucket", format!("{document}: {fault}")))?;
        self.known.insert(name, bucket);
        Ok(())
    }
}

impl Wallet {
    /// Checks what an exchange has published against this wallet's records. Also returns evidence of fraud that others can
    /// check.
    ///
    /// # Errors
    /// If the exchange publishes nothing, or what it publishes is malformed; and if it cannot be reached.
    pub async fn verify_liabilities(
        &self,
        exchange: &str,
        options: &CheckOptions,
    ) -> Result<(Report, Vec<Evidence>), WalletError> {
        let base_url = normalise_base_url(exchange)?;
        let (record, mut expected) = self.with_state(|state| -> Result<_, CoreError> {
            Ok((state.exchange(&base_url)?.clone(), liabilities::expected(state, &base_url)?))
        })?;
        let master_pub = record.master_pub;
        let fetcher = Fetcher::new(&options.source, &base_url)?;
        // Before the first epoch there is none. Receipts are there from the beginning.
        let found = fetcher.read(files::INDEX).await?;
        let has_index = found.is_some();
        let index: Index = match found {
            Some(bytes) => parse(&bytes).map_err(|reason| bad("index of liabilities", reason))?,
            None => Index { master_pub, epochs: Vec::new() },
        };
        if index.master_pub != master_pub {
            return Err(bad("index of liabilities", "it belongs to another exchange"));
        }
        let mut report = Report { exchange: base_url.clone(), ..Report::default() };
        let mut evidence = Vec::new();
        let seen = record.liabilities.as_deref();
        let chain = self.chain(&fetcher, &index, (&expected, seen), &mut evidence, master_pub).await?;
        if let Some(last) = chain.statements.last() {
            let body = &last.statement;
            report.end = Some(body.end);
            report.outstanding = body.outstanding().map(|sum| format!("{}:{sum}", record.currency));
            if let Some((url, auditor_pub)) = &options.auditor {
                let url = format!("{}/liabilities/{}", url.trim_end_matches('/'), body.epoch);
                let found = fetch(fetcher.apart()?.transport.as_ref(), url).await?;
                let found = found.and_then(|bytes| parse::<Confirmation>(&bytes).ok());
                report.confirmed = Some(found.is_some_and(|found| found.check(body, auditor_pub).is_ok()));
            }
        }
        report.epochs = chain.epochs;
        let mut buckets = Buckets::default();
        let is_local = matches!(options.source, Source::Directory(_));
        let plan = liabilities::plan(&chain, &expected, options.payments, !is_local);
        report.hidden_among = plan.hidden_among;
        self.fetch_buckets(&fetcher, &chain, &expected, (&plan, is_local), &mut buckets).await?;
        report.bytes = buckets.bytes;
        let last_end = report.end.unwrap_or(Timestamp::ZERO);
        let mut wanted = Vec::new();
        for (n, item) in expected.iter().enumerate() {
            let found = self.find(&chain, item, &buckets);
            let shown = |epoch| item.item(record.currency, epoch);
            match found {
                Some((epoch, sum)) if sum == item.sum => report.counted.push(shown(Some(epoch))),
                Some((epoch, _)) => report.missing.push(shown(Some(epoch))),
                None if plan.skipped.contains(&n) => report.skipped.push(shown(None)),
                None if !is_due(last_end, item.latest()) => {
                    report.not_due.push(shown(None));
                    if item.h_coin_ev.is_some() && item.receipt.is_none() {
                        wanted.push(n);
                    }
                }
                None if item.kind == Kind::Issued => {
                    report.missing.push(shown(None));
                    if let Some(fraud) = self.omitted(&chain, item, &buckets) {
                        evidence.push(Evidence::new(master_pub, fraud));
                    } else if item.receipt.is_none() {
                        wanted.push(n);
                    }
                }
                None => report.uncounted.push(shown(None)),
            }
        }
        if options.receipts {
            let receipts =
                self.fetch_receipts(&base_url, master_pub, (&mut expected, &wanted), has_index).await?;
            if !has_index && receipts.is_empty() {
                return Err(bad("index of liabilities", "the exchange does not publish what it owes"));
            }
            for n in wanted.into_iter().filter(|n| expected[*n].receipt.is_none()) {
                report.unconfirmed.push(expected[n].item(record.currency, None));
            }
            self.step(|state, _, _| Ok(((), liabilities::keep_receipts(state, receipts))))?;
        }
        // Only what proves something is evidence.
        evidence.retain(|evidence| evidence.judge().is_ok());
        let say = |evidence: &Evidence| match evidence.judge() {
            Ok(judgement) => format!("{judgement}"),
            Err(reason) => reason.to_string(),
        };
        report.frauds = evidence.iter().map(say).collect();
        if report.frauds.is_empty()
            && let Some(last) = chain.statements.last()
        {
            let head = last.head();
            self.step(|state, _, _| Ok(((), liabilities::keep_head(state, &base_url, head)?)))?;
        }
        Ok((report, evidence))
    }

    /// Fetches and checks the statements that matter to this wallet: from the first in which something of it can be, or
    /// from the last one that it has seen.
    async fn chain(
        &self,
        fetcher: &Fetcher,
        index: &Index,
        (expected, seen): (&[Expected], Option<&Head>),
        evidence: &mut Vec<Evidence>,
        master_pub: EddsaPublicKey,
    ) -> Result<Chain, WalletError> {
        let epochs = index.epochs.len() as u64;
        let is_in_order = index.epochs.iter().zip(1..).all(|(found, epoch)| found.epoch == epoch);
        if !is_in_order {
            return Err(bad("index of liabilities", "its epochs are not in order"));
        }
        if let Some(seen) = seen.filter(|seen| seen.epoch > epochs) {
            // Nobody can prove that something is not shown.
            let reason = format!("it ends with epoch {epochs}, but epoch {} has been published", seen.epoch);
            return Err(bad("index of liabilities", reason));
        }
        // One more before the first, which shows that nothing can be in it.
        let earliest = expected.iter().map(Expected::earliest).min().unwrap_or(Timestamp::NEVER);
        let before = index.epochs.iter().filter(|found| found.end < earliest).count() as u64;
        let mut first = before.saturating_sub(1).max(1);
        if let Some(seen) = seen {
            first = first.min(seen.epoch);
        }
        let mut statements: Vec<Statement> = Vec::new();
        for published in index.epochs.iter().filter(|found| found.epoch >= first) {
            let document = files::statement(published.epoch);
            let statement: Statement = fetcher.get(&document, "statement of liabilities").await?;
            let fault = |fault: batzen_protocol::liabilities::Fault| {
                bad("statement of liabilities", format!("epoch {}: {fault}", published.epoch))
            };
            statement.check_signature(&master_pub).map_err(fault)?;
            if statement.statement.epoch != published.epoch
                || statement.statement.hash() != published.h_statement
            {
                return Err(bad("statement of liabilities", "the index names another one"));
            }
            if let Some(seen) = seen.filter(|seen| seen.epoch == published.epoch)
                && seen.h_statement != published.h_statement
            {
                let both = Rewritten { one: seen.clone(), other: statement.head() };
                evidence.push(Evidence::new(master_pub, Fraud::Rewritten(Box::new(both))));
            }
            if published.epoch == 1 || !statements.is_empty() {
                let before = statements.last();
                if let Err(why) = statement.statement.check_after(before.map(|before| &before.statement)) {
                    if matches!(why, batzen_protocol::liabilities::Fault::Version(_)) {
                        return Err(fault(why));
                    }
                    let both = Broken { before: before.cloned(), statement: statement.clone() };
                    evidence.push(Evidence::new(master_pub, Fraud::Broken(Box::new(both))));
                }
            }
            statements.push(statement);
        }
        Ok(Chain { statements, epochs })
    }

    /// Fetches the buckets of a plan.
    async fn fetch_buckets(
        &self,
        fetcher: &Fetcher,
        chain: &Chain,
        expected: &[Expected],
        (plan, is_local): (&Plan, bool),
        buckets: &mut Buckets,
    ) -> Result<(), WalletError> {
        for statement in chain.statements.iter().filter(|found| plan.whole.contains(&found.statement.epoch)) {
            let body = &statement.statement;
            let parts = body.denominations.iter().flat_map(|entry| Kind::ALL.map(|kind| (entry, kind)));
            for (entry, kind) in parts.filter(|(entry, kind)| entry.part(*kind).root.count > 0) {
                let part = entry.part(kind);
                for place in 0..1u32 << part.bits.min(tree::BITS_MAX) {
                    // A local file is read only if it is needed: nobody sees it.
                    let is_needed = !is_local
                        || expected.iter().any(|item| {
                            (item.h_denom_pub, item.kind) == (entry.h_denom_pub, kind)
                                && tree::place(&item.leaf, part.bits) == place
                        });
                    if is_needed {
                        buckets.fetch(fetcher, (body.epoch, entry.h_denom_pub, kind, place), part).await?;
                    }
                }
            }
        }
        // In an order that tells nothing.
        let mut groups: Vec<_> = plan.groups.iter().map(|items| (HashCode::random(), items)).collect();
        groups.sort();
        for (_, items) in groups {
            let apart = fetcher.apart()?;
            for item in items.iter().map(|n| &expected[*n]) {
                for statement in chain.candidates(item) {
                    let Some(part) = chain.part(statement, item) else { continue };
                    let place = tree::place(&item.leaf, part.bits);
                    let name = (statement.statement.epoch, item.h_denom_pub, item.kind, place);
                    buckets.fetch(&apart, name, &part).await?;
                    if buckets.known.get(&name).is_some_and(|bucket| bucket.find(&item.leaf).is_some()) {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// The epoch that counts something, and how much.
    fn find(
        &self,
        chain: &Chain,
        item: &Expected,
        buckets: &Buckets,
    ) -> Option<(u64, batzen_protocol::MoneySum)> {
        chain.candidates(item).find_map(|statement| {
            let part = chain.part(statement, item)?;
            let place = tree::place(&item.leaf, part.bits);
            let epoch = statement.statement.epoch;
            let bucket = buckets.known.get(&(epoch, item.h_denom_pub, item.kind, place))?;
            bucket.find(&item.leaf).map(|leaf| (epoch, leaf.sum))
        })
    }

    /// The proof that a signature is not counted, if there is a receipt for it.
    fn omitted(&self, chain: &Chain, item: &Expected, buckets: &Buckets) -> Option<Fraud> {
        let receipt = item.receipt.as_deref()?.clone();
        let may_have = chain.candidates(item).next()?.statement.epoch;
        let gap = |statement: &Statement| {
            let bucket = chain.part(statement, item).and_then(|part| {
                let place = tree::place(&item.leaf, part.bits);
                buckets.known.get(&(statement.statement.epoch, item.h_denom_pub, item.kind, place))
            });
            Gap { statement: statement.clone(), bucket: bucket.cloned() }
        };
        let from = chain.statements.iter().filter(|found| found.statement.epoch + 1 >= may_have);
        // The first epoch that had to count it is enough.
        let mut epochs = Vec::new();
        for statement in from {
            epochs.push(gap(statement));
            if is_due(statement.statement.end, receipt.timestamp) {
                break;
            }
        }
        Some(Fraud::Omitted(Box::new(Omitted { receipt, epochs })))
    }

    /// Asks the exchange for receipts: those of one operation on one connection.
    async fn fetch_receipts(
        &self,
        exchange: &str,
        master_pub: EddsaPublicKey,
        (expected, wanted): (&mut [Expected], &[usize]),
        has_index: bool,
    ) -> Result<Vec<(EddsaPublicKey, Receipt)>, WalletError> {
        let mut by_operation: BTreeMap<OpId, Vec<usize>> = BTreeMap::new();
        for n in wanted {
            by_operation.entry(expected[*n].operation).or_default().push(*n);
        }
        let mut receipts = Vec::new();
        for group in by_operation.into_values() {
            let transport = HttpTransport::new()?;
            for n in group {
                let item = &mut expected[n];
                let Some(h_coin_ev) = item.h_coin_ev else { continue };
                let url = format!("{exchange}liabilities/{}", files::receipt(&h_coin_ev));
                let Some(bytes) = fetch(&transport, url).await? else {
                    if !has_index && receipts.is_empty() {
                        // It gives none to anybody, and need not learn about more coins.
                        return Ok(receipts);
                    }
                    continue;
                };
                let receipt: Receipt = parse(&bytes).map_err(|reason| bad("receipt", reason))?;
                receipt.check(&master_pub).map_err(|fault| bad("receipt", fault))?;
                if (receipt.h_coin_ev, receipt.h_denom_pub) != (h_coin_ev, item.h_denom_pub) {
                    return Err(bad("receipt", "it is for another planchet"));
                }
                // A receipt of a later time would prove nothing when it matters.
                if receipt.timestamp > item.latest() {
                    return Err(bad("receipt", "its date is later than the withdrawal"));
                }
                receipts.push((item.coin_pub, receipt.clone()));
                item.receipt = Some(Box::new(receipt));
            }
        }
        Ok(receipts)
    }
}
