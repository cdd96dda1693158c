//! The last steps: an auditor checks every row and signature again, and then a copy that somebody has changed.

use std::ops::ControlFlow;

use anyhow::{Context, ensure};
use batzen_auditor::audit::{AuditOutcome, History, Options, Progress, Sheet, Subject, read_terms};
use batzen_auditor::checks::{Account, CheckConfig, read_bank};
use batzen_auditor::live::Since;
use batzen_exchange::reads::totals::Totals;
use batzen_protocol::{Money, MoneySum};
use batzen_service::storage::StoreConfig;
use batzen_service::wire_gateway::GatewayAuth;
use batzen_store::memory::MemoryBackend;
use batzen_store::{Change, ChangeSet, CommitOutcome, Store};
use batzen_tables::exchange::{AUDITED, DepositRow, Deposits};

use super::report::StepSummary;
use super::world::{EXCHANGE_ACCOUNT, World};
use batzen_exchange::reads::sheet::BalanceSheet;

/// The exchange, as its auditor knows it.
fn config(world: &World) -> CheckConfig {
    let core = &world.app().core;
    let accounts = core.config.accounts.iter().map(|account| Account {
        section: account.section.clone(),
        payto_uri: account.payto_uri.clone(),
        credits: true,
        debits: true,
        gateway_url: world.bank.wire_gateway_url(EXCHANGE_ACCOUNT),
        auth: GatewayAuth::None,
    });
    CheckConfig {
        subject: Subject {
            currency: core.config.currency,
            master_pub: core.master_public_key,
            base_url: core.config.base_url.clone(),
            round_unit: core.config.currency_round_unit.units(),
            auditor: None,
        },
        store: StoreConfig::Memory,
        tiny: 0,
        accounts: accounts.collect(),
    }
}

async fn check(world: &World, store: &Store) -> anyhow::Result<AuditOutcome> {
    let config = config(world);
    let bank = read_bank(&config, &Since::default(), false).await?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let options = Options {
        now: world.app().core.now(),
        internal: true,
        in_order: true,
        threads,
        bank,
        confirmations: Vec::new(),
        copied: None,
    };
    let store = store.clone();
    let outcome = tokio::task::spawn_blocking(move || {
        batzen_auditor::audit::audit(&store, &config.subject, &options, &Progress::default())
    });
    Ok(outcome.await??)
}

/// Returns whether the auditor has computed what the exchange says.
fn is_same(sheet: &Sheet, totals: &Totals) -> bool {
    let pairs: [(i128, MoneySum); 10] = [
        (sheet.wired_in.units, totals.wired_in),
        (sheet.wired_out.units, totals.wired_out),
        (sheet.reserves.units, totals.reserves),
        (sheet.issued.units, totals.issued),
        (sheet.redeemed.units, totals.redeemed),
        (sheet.outstanding.units, totals.outstanding),
        (sheet.deposits.units + sheet.transient.units + sheet.in_flight.units, totals.pending),
        (sheet.purses.units, totals.purses),
        (sheet.unrevealed_melts.units, totals.unrevealed_melts),
        (sheet.fees.units, totals.fees),
    ];
    pairs.into_iter().all(|(audited, stated)| u128::try_from(audited) == Ok(stated.units()))
}

/// Audits the exchange: nothing is found, and the sums are those of the balance sheet.
pub(super) async fn audit(world: &World, sheet: &BalanceSheet) -> anyhow::Result<((), StepSummary)> {
    let outcome = check(world, &world.app().core.store).await?;
    if let Some(finding) = outcome.faults().next() {
        let info = finding.rule.info();
        anyhow::bail!(
            "{} in row {} of {}: {}",
            info.name,
            finding.row.serial,
            finding.row.table,
            info.meaning
        );
    }
    ensure!(is_same(&outcome.sheet, &sheet.totals), "the auditor's sums are not those of the balance sheet");
    let summary = format!(
        "the auditor checked {} rows and {} signatures: no finding, and the same balance sheet",
        outcome.rows, outcome.signatures
    );
    Ok(((), StepSummary { count: usize::try_from(outcome.rows)?, summary }))
}

/// The audited rows in memory; `change` may alter a deposit.
fn copy(store: &Store, mut change: impl FnMut(&mut DepositRow)) -> anyhow::Result<Store> {
    use batzen_store::{Record, Table};
    let frozen = store.freeze(AUDITED)?;
    let mut changes = ChangeSet::new();
    for table in AUDITED {
        let mut failed = None;
        frozen.scan(table, &mut |record| {
            let mut row = record.row;
            if table.id == Deposits::DEF.id {
                match DepositRow::decode(&row) {
                    Ok(mut deposit) => {
                        change(&mut deposit);
                        row = deposit.to_bytes();
                    }
                    Err(error) => failed = Some(error),
                }
            }
            changes.push(Change::Insert { table, key: record.key, row });
            ControlFlow::Continue(())
        })?;
        if let Some(error) = failed {
            return Err(error).context("a deposit");
        }
    }
    let copy = Store::new(MemoryBackend::new());
    ensure!(copy.commit(&changes)? == CommitOutcome::Committed, "a copy has every row once");
    Ok(copy)
}

/// Changes one deposit of a copy by a hundredth, and expects the auditor to find it.
pub(super) async fn audit_tampered(world: &World) -> anyhow::Result<((), StepSummary)> {
    let store = world.app().core.store.clone();
    let seen = copy(&store, |_| {})?;
    let cent = Money::from_units(1_000_000)?;
    let mut is_changed = false;
    let changed = copy(&store, |deposit| {
        if !is_changed && let Ok(less) = deposit.amount.checked_sub(cent) {
            deposit.amount = less;
            is_changed = true;
        }
    })?;
    ensure!(is_changed, "there is no deposit to change");
    let outcome = check(world, &changed).await?;
    let subject = config(world).subject;
    let terms = read_terms(&*changed.freeze(AUDITED)?, &subject)?;
    let now = world.app().core.now();
    let history = History { seen: &seen, current: &changed, terms: &terms, now }.compare()?;
    let mut rules: Vec<&str> =
        outcome.faults().chain(&history).map(|finding| finding.rule.info().name).collect();
    rules.sort_unstable();
    rules.dedup();
    for expected in ["deposit-signature", "coin-remaining", "row-rewritten"] {
        ensure!(rules.contains(&expected), "the auditor does not find {expected}, only {rules:?}");
    }
    let summary = format!("one deposit of a copy was changed by 0.01: found by {}", rules.join(", "));
    Ok(((), StepSummary { count: rules.len(), summary }))
}
