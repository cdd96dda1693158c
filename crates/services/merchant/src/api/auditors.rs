//! Shows auditors what exchanges have confirmed, so that an exchange cannot hide a deposit from them.
//!
//! Each auditor that an exchange lists gets a random share of the confirmations, chosen for each auditor by itself. No
//! payment waits for that. What an auditor does not take at once is repeated for some minutes, within limits: it is a
//! sample, so it is not kept over a restart, and when too many are waiting, further ones are dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use batzen_crypto::fill_random;
use batzen_http::Method;
use batzen_http::client::{ClientError, Reply};
use batzen_metrics::{Counter, Page};
use batzen_protocol::Currency;
use batzen_protocol::api::auditor::DepositConfirmationRequest;
use batzen_protocol::api::exchange::DepositConfirmation;
use tokio::sync::Semaphore;

use super::background::Background;
use super::pay::{Contract, ReadyCoin, confirmed_message};
use crate::config::ConfirmationShare;
use crate::exchanges::{Auditor, is_transient};

/// The most confirmations that wait for one auditor, one that does not answer included.
const WAITING_MAX: usize = 1_024;
/// The most auditors for which confirmations wait: exchanges name them.
const AUDITORS_MAX: usize = 64;
/// The most confirmations that wait for all auditors: a kilobyte each.
const TASKS_MAX: usize = 8 * WAITING_MAX;
/// Requests to an auditor at the same time. One that does not answer holds up no other.
const REQUESTS_AT_ONCE: usize = 4;
/// The pauses before the second and each further request. After these, a confirmation is given up.
const PAUSES: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(4),
    Duration::from_secs(16),
    Duration::from_secs(64),
    Duration::from_secs(256),
];

/// A confirmation for an auditor.
pub(super) struct Sample {
    auditor: Auditor,
    body: Arc<DepositConfirmationRequest>,
}

/// Sends auditors their share of the confirmations, and counts how that ends.
pub(super) struct Auditors {
    tasks: Background,
    queues: Mutex<HashMap<String, Queue>>,
    shown: Counter,
    refused: Counter,
    given_up: Counter,
    dropped: Counter,
}

/// Confirmations for an auditor.
struct Queue {
    waiting: usize,
    turns: Arc<Semaphore>,
}

impl Auditors {
    pub(super) fn new() -> Self {
        Self {
            tasks: Background::with_limit(TASKS_MAX),
            queues: Mutex::default(),
            shown: Counter::default(),
            refused: Counter::default(),
            given_up: Counter::default(),
            dropped: Counter::default(),
        }
    }

    /// Makes room for a confirmation, and returns the auditor's turns. None if too many are waiting.
    fn begin(&self, url: &str) -> Option<Arc<Semaphore>> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.len() >= AUDITORS_MAX && !queues.contains_key(url) {
            return None;
        }
        let new = || Queue { waiting: 0, turns: Arc::new(Semaphore::new(REQUESTS_AT_ONCE)) };
        let queue = queues.entry(url.to_owned()).or_insert_with(new);
        if queue.waiting >= WAITING_MAX {
            return None;
        }
        queue.waiting += 1;
        Some(Arc::clone(&queue.turns))
    }

    fn end_one(&self, url: &str) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get_mut(url) {
            queue.waiting -= 1;
            if queue.waiting == 0 {
                queues.remove(url);
            }
        }
    }

    /// Shows auditors confirmations of coins that are recorded.
    pub(super) fn show(self: &Arc<Self>, samples: Vec<Sample>) {
        for Sample { auditor, body } in samples {
            let url = auditor.url.clone();
            let Some(turns) = self.begin(&url) else {
                self.dropped.inc();
                continue;
            };
            let auditors = Arc::clone(self);
            let is_spawned = self.tasks.spawn(async move {
                auditors.show_one(&auditor, &turns, &body).await;
                auditors.end_one(&auditor.url);
            });
            if !is_spawned {
                self.end_one(&url);
                self.dropped.inc();
            }
        }
    }

    async fn show_one(&self, auditor: &Auditor, turns: &Semaphore, body: &DepositConfirmationRequest) {
        let Auditor { url, client } = auditor;
        let mut pauses = PAUSES.into_iter();
        loop {
            let turn = turns.acquire().await.expect("never closed");
            let call = client.call(Method::PUT, format!("{url}deposit-confirmation"));
            let answer = call.json(body).send().await;
            drop(turn);
            match shown(&answer) {
                Shown::Taken => return self.shown.inc(),
                Shown::Refused => {
                    let status = answer.map(|reply| reply.status).unwrap_or_default();
                    tracing::warn!(auditor = url, status, "an auditor does not want a confirmation");
                    return self.refused.inc();
                }
                Shown::Later => {}
            }
            let Some(pause) = pauses.next() else {
                tracing::warn!(auditor = url, "an auditor did not answer for minutes");
                return self.given_up.inc();
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Ends all requests.
    pub(super) async fn end(&self) {
        self.tasks.end().await;
    }

    pub(super) fn write(&self, page: &mut Page) {
        page.counters(
            "batzen_merchant_audits_total",
            "Confirmations for auditors. shown: the auditor has it; refused: it does not want it; given_up: it did not \
             answer for minutes; dropped: too many were waiting",
            "outcome",
            [
                ("shown", self.shown.get()),
                ("refused", self.refused.get()),
                ("given_up", self.given_up.get()),
                ("dropped", self.dropped.get()),
            ],
        );
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting: usize = queues.values().map(|queue| queue.waiting).sum();
        page.gauge("batzen_merchant_audits_waiting", "Confirmations that wait for auditors", waiting);
    }
}

/// The end of a request to an auditor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Taken,
    Refused,
    Later,
}

fn shown(answer: &Result<Reply, ClientError>) -> Shown {
    match answer {
        Ok(reply) if reply.status / 100 == 2 => Shown::Taken,
        Ok(reply) if is_transient(reply.status) => Shown::Later,
        Ok(_) => Shown::Refused,
        Err(_) => Shown::Later,
    }
}

/// Selects the confirmations of a deposit that auditors get to see: none, of most.
pub(super) fn sample(
    contract: &Contract<'_>,
    coin: &ReadyCoin,
    confirmation: &DepositConfirmation,
    currency: Currency,
    share: ConfirmationShare,
) -> Vec<Sample> {
    let chosen: Vec<&Auditor> = coin.exchange.auditors.iter().filter(|_| is_chosen(share)).collect();
    if chosen.is_empty() {
        return Vec::new();
    }
    let Some(signkey) = coin.exchange.signkey(&confirmation.exchange_pub) else { return Vec::new() };
    let Ok(message) = confirmed_message(contract, coin, confirmation, currency) else { return Vec::new() };
    let body = Arc::new(DepositConfirmationRequest {
        h_contract_terms: message.h_contract_terms,
        h_policy: message.h_policy,
        h_wire: message.h_wire,
        exchange_timestamp: message.exchange_timestamp,
        refund_deadline: message.refund_deadline,
        wire_deadline: message.wire_deadline,
        amount_without_fee: message.amount_without_fee,
        coin_pub: message.coin_pub,
        merchant_pub: message.merchant_pub,
        exchange_sig: confirmation.exchange_sig,
        exchange_pub: confirmation.exchange_pub,
        master_pub: coin.exchange.master_pub,
        ep_start: signkey.stamp_start,
        ep_expire: signkey.stamp_expire,
        ep_end: signkey.stamp_end,
        master_sig: signkey.master_sig,
    });
    chosen.into_iter().map(|auditor| Sample { auditor: auditor.clone(), body: Arc::clone(&body) }).collect()
}

fn is_chosen(share: ConfirmationShare) -> bool {
    let mut random = [0; 4];
    fill_random(&mut random);
    share.covers(u32::from_le_bytes(random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_auditor_that_does_not_answer_takes_no_room_of_others() {
        let auditors = Auditors::new();
        let begins = |url: &str| auditors.begin(url).is_some();
        assert!((0..WAITING_MAX).all(|_| begins("http://silent/")));
        assert!(!begins("http://silent/"));
        let held: Vec<_> = {
            let queues = auditors.queues.lock().unwrap();
            let turns = &queues["http://silent/"].turns;
            (0..REQUESTS_AT_ONCE).map(|_| Arc::clone(turns).try_acquire_owned().unwrap()).collect()
        };
        assert!(auditors.begin("http://other/").unwrap().try_acquire().is_ok());
        drop(held);
        auditors.end_one("http://silent/");
        assert!(begins("http://silent/"));
        assert!((2..AUDITORS_MAX).all(|number| begins(&format!("http://{number}/"))));
        assert!(!begins("http://one-too-many/"));
        auditors.end_one("http://other/");
        assert!(begins("http://one-too-many/"));
    }

    #[test]
    fn none_or_all_are_chosen_without_exception() {
        assert!(!(0..1_000).any(|_| is_chosen(ConfirmationShare::NONE)));
        assert!((0..1_000).all(|_| is_chosen(ConfirmationShare::ALL)));
        let half = (0..4_000).filter(|_| is_chosen("50".parse().unwrap())).count();
        // Further from the mean by ten standard deviations.
        assert!((1_684..=2_316).contains(&half), "{half}");
    }
}
