//! The workers, one round at a time, with the same reads and commands as in the service.

use batzen_crypto::{HashCode, Wtid};
use batzen_exchange::reads::read;
use batzen_exchange::rules::transfers::payto_method;
use batzen_exchange::rules::{
    Aggregate, Aggregated, Answer, CloseReserve, Closed, Command, Credit, Credits, TransferFailed,
    TransfersDone, Trigger,
};
use batzen_protocol::Timestamp;
use batzen_protocol::api::bank::{IncomingHistory, TransferRequest};
use batzen_protocol::payto::h_payto;
use batzen_store::{Store, StoreError};
use batzen_tables::exchange::{AccountId, DepositTarget};
use batzen_wallet::core::http::{Context as HttpContext, HttpRequest, HttpResponse};

use super::{Exchange, Question};
use crate::host::{Step, Stop};
use crate::keys::{BANK_URL, EXCHANGE_ACCOUNT, METHOD, currency, payto};
use crate::message::{Context, Place, Timer};
use crate::random::Random;
use crate::swarm::Bug;

/// Number of items that a worker handles in one round.
const PAGE: usize = 64;

/// The exchange's account.
pub fn account() -> AccountId {
    AccountId::of_payto(&payto(EXCHANGE_ACCOUNT))
}

fn gateway(path: &str) -> String {
    format!("{BANK_URL}taler-wire-gateway/{EXCHANGE_ACCOUNT}/{path}")
}

/// Gives a transfer request another uid, which is a bug.
pub fn with_new_uid(request: &mut HttpRequest, random: &mut Random) {
    let body = request.body.take().unwrap_or_default();
    let mut transfer: TransferRequest = serde_json::from_slice(&body).expect("a transfer");
    transfer.request_uid = HashCode::from_bytes(random.bytes());
    request.body = serde_json::to_vec(&transfer).ok();
}

impl Exchange {
    /// One round of a worker.
    pub(super) fn work(&mut self, context: &mut Context, timer: Timer) -> Step {
        let gap = context.swarm.worker_gap;
        let gap = if context.is_active { context.random.gap(gap) } else { gap.max(1_200 * 1_000_000) };
        context.wake(Place::Exchange, self.host.incarnation, gap, timer);
        match timer {
            Timer::Wirewatch => self.watch(context),
            Timer::Aggregate => self.aggregate(context),
            Timer::Close => self.close(context),
            Timer::Transfer => self.transfer(context),
            other => Err(Stop::wrong(format!("the exchange has no timer {other:?}"))),
        }
    }

    /// Reads the store. `None` if the process died.
    fn read<T>(
        &mut self,
        context: &mut Context,
        read: impl FnOnce(&Store) -> Result<T, StoreError>,
    ) -> Step<Option<T>> {
        let Some((store, _)) = self.store() else { return Ok(None) };
        let result = read(store);
        if self.lost(context) {
            return Ok(None);
        }
        result.map(Some).map_err(|error| self.host.refused(context, &error))
    }

    fn watch(&mut self, context: &mut Context) -> Step {
        if self.sleeps {
            return Ok(());
        }
        let Some(cursor) = self.read(context, |store| read::cursor(store, account()))? else { return Ok(()) };
        if self.questions.values().any(|question| *question == Question::History) {
            context.marks.meet("history.repeated");
            self.sleeps = context.has(Bug::LostWakeup);
        }
        // Once a request has been repeated, the answer to the first one is ignored.
        self.questions.retain(|_, question| *question != Question::History);
        let rows = context.swarm.page_rows;
        let url = gateway(&format!("history/incoming?start={cursor}&delta={rows}"));
        self.ask(context, HttpRequest::get(HttpContext::Bank, url), Some(Question::History));
        Ok(())
    }

    /// Books a page of the bank's history.
    pub(super) fn book_history(&mut self, context: &mut Context, response: &HttpResponse) -> Step {
        if response.status == 204 {
            return Ok(());
        }
        if response.status != 200 {
            self.sleeps = context.has(Bug::LostWakeup);
            return Ok(());
        }
        let page: IncomingHistory = serde_json::from_slice(&response.body)
            .map_err(|error| Stop::wrong(format!("the bank's history does not parse: {error}")))?;
        let rows = page.incoming_transactions;
        let Some(last) = rows.last() else { return Ok(()) };
        let (cursor, is_full) = (last.row_id, rows.len() as u64 == context.swarm.page_rows);
        let mut credits: Vec<Credit> = rows
            .into_iter()
            .map(|row| Credit {
                bank_row: row.row_id,
                reserve_pub: row.reserve_pub,
                amount: row.amount.money,
                h_payto: h_payto(&row.debit_account),
                payto_uri: row.debit_account,
                time: row.date,
            })
            .collect();
        if context.has(Bug::SkipsARow) && credits.len() > 1 {
            credits.pop();
        }
        let command = Command::Credits(Credits { account: account(), credits, cursor, range: None });
        if let Some(verdicts) = self.run(context, &[command])? {
            if !matches!(verdicts.first(), Some(Ok(Answer::Credits(_)))) {
                return Err(Stop::wrong(format!("credits were refused: {verdicts:?}")));
            }
            if is_full {
                context.marks.meet("history.page_full");
                return self.watch(context);
            }
        } else if self.host.is_up() {
            self.sleeps = context.has(Bug::LostWakeup);
        }
        Ok(())
    }

    fn aggregate(&mut self, context: &mut Context) -> Step {
        let now = {
            let Some(running) = &self.running else { return Ok(()) };
            running.rules.aggregation_time(self.now(context))
        };
        let position = read::DuePosition::default();
        let due = self.read(context, |store| read::due_targets(store, now, &position, PAGE))?;
        let Some((targets, _)) = due else { return Ok(()) };
        for target in targets {
            self.aggregate_target(context, target, now)?;
        }
        Ok(())
    }

    fn aggregate_target(&mut self, context: &mut Context, target: DepositTarget, now: Timestamp) -> Step {
        let mut trigger = Trigger::Due;
        // A few deposits at a time, so that transient aggregates are created.
        let deposits_max = usize::try_from(context.random.between(1, 3)).expect("few");
        for _ in 0..PAGE {
            let transient = self.read(context, |store| read::transient(store, target, account()))?;
            let Some(transient) = transient else { return Ok(()) };
            let command = Command::Aggregate(Aggregate {
                target,
                method: METHOD.to_owned(),
                account: account(),
                until: now,
                deposits_max,
                trigger,
                complete: false,
                wtid: transient.map_or_else(|| Wtid::from_bytes(context.random.bytes()), |row| row.wtid),
                request_uid: HashCode::from_bytes(context.random.bytes()),
                kyc_hold: None,
            });
            let Some(mut verdicts) = self.run(context, &[command])? else { return Ok(()) };
            match verdicts.pop() {
                Some(Ok(Answer::Aggregate(Aggregated::Transient { more: true, .. }))) => {
                    trigger = Trigger::Continued;
                }
                Some(Ok(Answer::Aggregate(aggregated))) => {
                    context.marks.meet(match aggregated {
                        Aggregated::Prepared { .. } => "aggregate.paid",
                        Aggregated::Transient { .. } => "aggregate.small",
                        Aggregated::Nothing => "aggregate.nothing",
                    });
                    return Ok(());
                }
                other => return Err(Stop::wrong(format!("an aggregation was answered with {other:?}"))),
            }
        }
        Ok(())
    }

    fn close(&mut self, context: &mut Context) -> Step {
        let now = self.now(context);
        let expired = self.read(context, |store| read::expired_reserves(store, now, PAGE))?;
        for (reserve_pub, row) in expired.into_iter().flatten() {
            let Some(h_payto) = row.origin else { continue };
            let payto_uri = self.read(context, |store| read::payto(store, h_payto))?;
            let Some(payto_uri) = payto_uri else { return Ok(()) };
            if payto_uri.as_deref().and_then(payto_method) != Some(METHOD) {
                return Err(Stop::wrong(format!("a reserve has come from {payto_uri:?}")));
            }
            let command = Command::CloseReserve(CloseReserve {
                reserve_pub,
                request_time: None,
                h_payto,
                method: METHOD.to_owned(),
                account: account(),
                wtid: Wtid::from_bytes(context.random.bytes()),
                request_uid: HashCode::from_bytes(context.random.bytes()),
            });
            let Some(verdicts) = self.run(context, &[command])? else { return Ok(()) };
            match verdicts.first() {
                Some(Ok(Answer::CloseReserve(Closed::Closed { paid, .. }))) => {
                    let mark = if paid.is_zero() { "close.unpaid" } else { "close.paid" };
                    context.marks.meet(mark);
                }
                Some(Ok(Answer::CloseReserve(Closed::NotDue | Closed::Empty))) => {}
                other => return Err(Stop::wrong(format!("a closing was answered with {other:?}"))),
            }
        }
        Ok(())
    }

    fn transfer(&mut self, context: &mut Context) -> Step {
        let open = self.read(context, |store| {
            let mut open = Vec::new();
            for (wtid, row) in read::open_transfers(store, PAGE)? {
                let payto = read::payto(store, row.h_payto)?.expect("accounts in rows are kept");
                open.push((wtid, row, payto));
            }
            Ok(open)
        })?;
        for (wtid, row, credit_account) in open.into_iter().flatten() {
            if self.questions.values().any(|question| *question == Question::Transfer(wtid)) {
                // There was no answer for a whole round, so the request or its answer is lost.
                self.questions.retain(|_, question| *question != Question::Transfer(wtid));
                context.marks.meet("transfer.repeated");
            }
            let mut request_uid = row.request_uid;
            if context.has(Bug::NewUidForEachAttempt) {
                request_uid = HashCode::from_bytes(context.random.bytes());
            }
            let request = TransferRequest {
                request_uid,
                amount: row.amount.of(currency()),
                exchange_base_url: row.exchange_base_url,
                wtid,
                credit_account,
            };
            let request = HttpRequest::post(HttpContext::Bank, gateway("transfer"), &request);
            self.ask(context, request, Some(Question::Transfer(wtid)));
        }
        Ok(())
    }

    /// Records the bank's answer to a transfer.
    pub(super) fn book_transfer(
        &mut self,
        context: &mut Context,
        wtid: Wtid,
        response: &HttpResponse,
    ) -> Step {
        let command = match response.status {
            200 => {
                let answers = self.transfers_answered.entry(wtid).or_default();
                *answers += 1;
                if *answers > 1 {
                    context.marks.meet("transfer.two_answers");
                }
                Command::TransfersDone(TransfersDone { wtids: vec![wtid] })
            }
            400 | 404 => {
                Command::TransferFailed(TransferFailed { wtid, reason: response.code().to_string() })
            }
            _ => return Ok(()),
        };
        match self.run(context, &[command])? {
            Some(verdicts) if verdicts.iter().any(Result::is_err) => {
                Err(Stop::wrong(format!("a transfer's answer was not recorded: {verdicts:?}")))
            }
            _ => Ok(()),
        }
    }
}
