//! Pages of a bank's history, and the conversion of their rows to credits.

use std::time::Duration;

use batzen_protocol::payto::h_payto;
use batzen_service::wire_gateway::IncomingRow;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::{Held, Watch, aside};
use crate::core::Core;
use crate::rules::{Credit, Credits, RangeProgress, RangeState, Refusal};
use crate::workers::{ItemError, WorkerError, decide, leases};

type Result<T, E = WorkerError> = std::result::Result<T, E>;

/// Number of credits that one command books, so that payments behind it in the lane do not wait long.
const COMMAND_CREDITS: usize = 1_024;
/// Number of commands that are in flight: one is executed while the other one waits.
const COMMANDS_IN_FLIGHT: usize = 2;

/// The part of a page that belongs to a range.
pub(super) struct Part<'a> {
    pub(super) rows: &'a [IncomingRow],
    /// Its last row, or the end of the range if it reaches that.
    pub(super) latest: u64,
    /// If the page reaches the end of the range: the id up to which there are no more rows.
    pub(super) seen_until: Option<u64>,
}

/// The result of importing a page.
#[derive(Default)]
pub(super) struct Imported {
    pub(super) booked: u64,
    pub(super) set_aside: u64,
    /// The state of the range afterwards; none if the range is complete.
    pub(super) range: Option<RangeState>,
}

impl Watch<'_> {
    /// The part of a page that belongs to the range.
    pub(super) fn part<'r>(&self, held: &Held, rows: &'r [IncomingRow]) -> Result<Part<'r>> {
        let mut last = None;
        for id in rows.iter().filter_map(|row| row.row_id) {
            if let Some(before) = last.replace(id).filter(|before| *before >= id) {
                return Err(WorkerError::Disorder {
                    section: self.account.section.clone(),
                    before,
                    after: id,
                });
            }
        }
        let beyond = rows.iter().position(|row| row.row_id.is_some_and(|id| id > held.range.end));
        let seen_until = match beyond {
            Some(index) => rows[index].row_id.map(|id| id - 1),
            None => last.filter(|last| *last == held.range.end),
        };
        let rows = &rows[..beyond.unwrap_or(rows.len())];
        let latest =
            if seen_until.is_some() { held.range.end } else { last.unwrap_or(0).max(held.range.latest) };
        Ok(Part { rows, latest, seen_until })
    }

    /// Books a page.
    pub(super) async fn import(&self, held: &Held, page: &Part<'_>, lease: Duration) -> Result<Imported> {
        let (rows, before) = (page.rows, held.range.latest);
        let mut imported = Imported::default();
        let mut newest = None;
        let moves = page.latest != before || page.seen_until.is_some();
        let progress = || RangeProgress {
            holder: self.holder,
            now: leases::now(self.app),
            lease: leases::length(lease),
            start: held.range.start,
            latest: page.latest,
            seen_until: page.seen_until,
        };
        let mut in_flight = FuturesUnordered::new();
        let mut parts = rows.chunks(COMMAND_CREDITS).peekable();
        while let Some(part) = parts.next() {
            let mut credits = Vec::with_capacity(part.len());
            let mut unusable = Vec::new();
            for row in part {
                match credit(self.app, row) {
                    Ok(credit) => credits.push(credit),
                    Err(reason) if row.row_id.is_none_or(|id| id > before) => {
                        unusable.push(aside::of_row(self.id, row, &reason));
                    }
                    // The bank has reported this row before.
                    Err(_) => {}
                }
            }
            // Before the cursor passes them.
            imported.set_aside += self.set_aside(unusable).await?;
            newest = credits.last().map(|credit| credit.time).or(newest);
            let is_last = parts.peek().is_none();
            // The last part, sent when all others are booked, advances the range.
            let running = if is_last { 0 } else { COMMANDS_IN_FLIGHT - 1 };
            while in_flight.len() > running {
                if let Some(booked) = in_flight.next().await {
                    Self::add(booked?, &mut imported);
                }
            }
            let progress = (is_last && moves).then(progress);
            if !credits.is_empty() || progress.is_some() {
                in_flight.push(self.book_part(credits, progress));
            }
        }
        if rows.is_empty() && moves {
            // There are no rows between those imported and the end of the range.
            in_flight.push(self.book_part(Vec::new(), Some(progress())));
        }
        while let Some(booked) = in_flight.next().await {
            Self::add(booked?, &mut imported);
        }
        let metrics = &self.app.metrics.workers;
        if !rows.is_empty() {
            metrics.credit_pages.inc();
        }
        if let Some(time) = newest {
            metrics.credit_lag_s.set(self.app.now().saturating_since(time).as_micros() / 1_000_000);
        }
        Ok(imported)
    }

    fn add(part: Imported, imported: &mut Imported) {
        imported.booked += part.booked;
        imported.set_aside += part.set_aside;
        imported.range = imported.range.or(part.range);
    }

    /// Books a part of a page, with the progress of the range.
    async fn book_part(&self, credits: Vec<Credit>, range: Option<RangeProgress>) -> Result<Imported> {
        let mut imported = Imported::default();
        let page = |credits, range| Credits { account: self.id, credits, cursor: 0, range };
        match self.book(page(credits.clone(), range)).await? {
            Ok(booked) => (imported.booked, imported.range) = booked,
            // One credit would overflow its reserve. Find it.
            Err(refusal) => {
                tracing::warn!(%refusal, "credits were refused, booking them one by one");
                for credit in credits {
                    match self.book(page(vec![credit.clone()], None)).await? {
                        Ok((booked, _)) => imported.booked += booked,
                        Err(refusal) => {
                            let refused = aside::of_credit(self.app, self.account, &credit, &refusal.into());
                            imported.set_aside += self.set_aside(vec![refused]).await?;
                        }
                    }
                }
                let rest = self.book(page(Vec::new(), range)).await?;
                (_, imported.range) = rest.map_err(|refusal| WorkerError::Refused(Box::new(refusal)))?;
            }
        }
        Ok(imported)
    }

    /// Books credits. Returns the number booked now and the state of the range.
    async fn book(&self, page: Credits) -> Result<Result<(u64, Option<RangeState>), Refusal>> {
        match decide(self.app, self.mode, page).await? {
            Ok(credited) => {
                self.app.notices.reserves_credited(&credited.reserves);
                self.app.metrics.workers.credits.add(credited.booked as u64);
                Ok(Ok((credited.booked as u64, credited.range)))
            }
            Err(refusal) => Ok(Err(refusal)),
        }
    }
}

/// The credit of a row.
pub(super) fn credit(app: &Core, row: &IncomingRow) -> Result<Credit, ItemError> {
    let transaction = row.transaction.as_ref().map_err(|row| ItemError::Unreadable(row.reason.clone()))?;
    let amount = transaction
        .amount
        .money_in(app.config.currency)
        .map_err(|_| ItemError::OtherCurrency(transaction.amount))?;
    let payto_uri = transaction.debit_account.clone();
    Ok(Credit {
        bank_row: transaction.row_id,
        reserve_pub: transaction.reserve_pub,
        amount,
        h_payto: h_payto(&payto_uri),
        payto_uri,
        time: transaction.date,
    })
}
